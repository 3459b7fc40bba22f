"""What draws are worth: figures by site, and the levels and reasons that follow from them."""
