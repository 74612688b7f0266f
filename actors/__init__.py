"""Who owns which session now, and where: directory, membership, placement, and the actors themselves."""
