"""Training: what turns a loss and an encoder into fitted posteriors."""
