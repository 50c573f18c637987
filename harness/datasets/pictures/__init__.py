"""Pictures that are made up: painted sheets, what is cut from them, and JPEG files of a wanted size."""
