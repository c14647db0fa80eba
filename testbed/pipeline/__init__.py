"""What is scheduled: actions and their order (IR), what they need and cost, and what makes an order valid."""
