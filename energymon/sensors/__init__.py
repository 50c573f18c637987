"""What measures energy on a host, one module a kind."""
