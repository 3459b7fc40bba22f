// GARCH(1, 1) with a known standard deviation at the first time.
data {
  int<lower=1> T;
  array[T] real y;
  real<lower=0> sigma1;
}
parameters {
  real mu;
  real<lower=0> alpha0;
  real<lower=0, upper=1> alpha1;
  real<lower=0, upper=1 - alpha1> beta1; // alpha1 + beta1 < 1: a stationary variance
}
model {
  // No stated priors: uniform on what the declarations allow.
  real variance = square(sigma1);
  for (t in 1 : T) {
    y[t] ~ normal(mu, sqrt(variance));
    variance = alpha0 + alpha1 * square(y[t] - mu) + beta1 * variance;
  }
}
