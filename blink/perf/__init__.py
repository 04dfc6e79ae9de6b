"""How long the work takes and how much memory it needs: model shapes, device profiles, the roofline."""
