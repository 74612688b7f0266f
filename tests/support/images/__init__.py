"""Images for tests, made by Pillow or by hand: ordinary ones and hostile ones."""
