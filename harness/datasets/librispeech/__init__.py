"""Speech: a made-up dataset that is to a loader what LibriSpeech is, and the adapter of the real one."""
