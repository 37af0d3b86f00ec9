"""From logits to a token: processors, distributions, and the sampler that ties them to a rule."""
