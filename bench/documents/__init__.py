"""Documents that strangers upload: what hostile ones cost."""
