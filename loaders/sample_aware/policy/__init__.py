"""Which sample is slow, what each worker does next, how many workers there are."""
