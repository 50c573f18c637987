/* Copies past the caches: stores that do not first fetch what they overwrite. A batch is larger than the caches, so
 * what a plain copy leaves in them is gone before anybody reads it. SSE2, which every x86-64 has.
 */
#include <emmintrin.h>
#include <stdint.h>
#include <string.h>

void nontemporal_copy(char *to, const char *from, size_t size)
{
    size_t head = -(uintptr_t)to & 63;

    if (size < head + 64) {
        memmove(to, from, size);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, size -= head;
    for (; size >= 64; to += 64, from += 64, size -= 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)from + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)from + 2);
        __m128i d = _mm_loadu_si128((const __m128i *)from + 3);

        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
    }
    /* Before whoever is told of it by a system call reads it. */
    _mm_sfence();
    memcpy(to, from, size);
}
