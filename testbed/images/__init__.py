"""Images, made by Pillow or by hand: ordinary ones and hostile ones."""
