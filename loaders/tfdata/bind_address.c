/* Makes a process that would listen on every address listen on the one of TFDATA_LISTEN_HOST, by LD_PRELOAD.

   tf.data service binds 0.0.0.0 and has no setting for another address. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

static int is_any(const struct in6_addr *address) {
    static const unsigned char none[4];
    return IN6_IS_ADDR_UNSPECIFIED(address) ||
           (IN6_IS_ADDR_V4MAPPED(address) && memcmp(address->s6_addr + 12, none, sizeof none) == 0);
}

/* An IPv4 host as the address that an IPv6 socket has for it, ::ffff:HOST. */
static int read_host(const char *host, struct in6_addr *address) {
    memset(address, 0, sizeof *address);
    address->s6_addr[10] = address->s6_addr[11] = 0xff;
    return inet_pton(AF_INET, host, address->s6_addr + 12) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

int bind(int socket, const struct sockaddr *address, socklen_t size) {
    bind_function libc_bind = (bind_function)dlsym(RTLD_NEXT, "bind");
    const char *host = getenv("TFDATA_LISTEN_HOST");
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    if (host != NULL && size >= sizeof six && address->sa_family == AF_INET6) {
        memcpy(&six, address, sizeof six);
        if (is_any(&six.sin6_addr)) {
            if (!read_host(host, &six.sin6_addr)) {
                errno = EADDRNOTAVAIL;
                return -1;
            }
            return libc_bind(socket, (const struct sockaddr *)&six, sizeof six);
        }
    }
    if (host != NULL && size >= sizeof four && address->sa_family == AF_INET) {
        memcpy(&four, address, sizeof four);
        if (four.sin_addr.s_addr == htonl(INADDR_ANY)) {
            if (inet_pton(AF_INET, host, &four.sin_addr) != 1) {
                errno = EADDRNOTAVAIL;
                return -1;
            }
            return libc_bind(socket, (const struct sockaddr *)&four, sizeof four);
        }
    }
    return libc_bind(socket, address, size);
}
