// Two hidden states with normal observations of unit variance, the states summed out.
data {
  int<lower=1> N;
  int<lower=2, upper=2> K;
  array[N] real y;
}
parameters {
  simplex[K] theta1; // next state after the first
  simplex[K] theta2; // next state after the second
  positive_ordered[K] mu;
}
model {
  matrix[K, K] log_transition;
  vector[K] forward; // log density of what was observed and of the present state
  log_transition[ : , 1] = log(theta1);
  log_transition[ : , 2] = log(theta2);

  mu[1] ~ normal(3, 1);
  mu[2] ~ normal(10, 1);

  // The first state has equal odds, whose logarithm is left out.
  for (k in 1 : K) {
    forward[k] = normal_lpdf(y[1] | mu[k], 1);
  }
  for (n in 2 : N) {
    vector[K] next_forward;
    for (k in 1 : K) {
      next_forward[k] = log_sum_exp(forward + log_transition[k]')
                        + normal_lpdf(y[n] | mu[k], 1);
    }
    forward = next_forward;
  }
  target += log_sum_exp(forward);
}
