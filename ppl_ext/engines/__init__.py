"""What the engines of both packages share: options, bases, a judgement at the end of a run."""
