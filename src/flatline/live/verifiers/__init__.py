"""The GRPO trainer of verifiers 0.1.2 to 0.1.6 (`vf.GRPOTrainer`), recorded while it trains."""
