// Two hidden states with two exponential observations at each time, the states summed out.
data {
  int<lower=1> N;
  int<lower=2, upper=2> K;
  array[N] real<lower=0> u;
  array[N] real<lower=0> v;
  matrix<lower=0>[K, K] alpha;
}
parameters {
  simplex[K] theta1; // next state after the first
  simplex[K] theta2; // next state after the second
  positive_ordered[K] phi; // rates of u
  positive_ordered[K] lambda; // rates of v
}
model {
  matrix[K, K] log_transition;
  vector[K] forward; // log density of what was observed and of the present state
  log_transition[ : , 1] = log(theta1);
  log_transition[ : , 2] = log(theta2);

  theta1 ~ dirichlet(alpha[1]');
  theta2 ~ dirichlet(alpha[2]');
  phi[1] ~ normal(0, 1);
  phi[2] ~ normal(3, 1);
  lambda[1] ~ normal(0, 1);
  lambda[2] ~ normal(3, 1);

  // The first state has equal odds, whose logarithm is left out.
  for (n in 1 : N) {
    vector[K] next_forward;
    for (k in 1 : K) {
      next_forward[k] = exponential_lpdf(u[n] | phi[k]) + exponential_lpdf(v[n] | lambda[k]);
      if (n > 1) {
        next_forward[k] += log_sum_exp(forward + log_transition[k]');
      }
    }
    forward = next_forward;
  }
  target += log_sum_exp(forward);
}
