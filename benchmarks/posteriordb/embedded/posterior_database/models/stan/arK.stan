// Autoregression of order K. The first K values are given.
data {
  int<lower=1> K;
  int<lower=K + 1> T;
  vector[T] y;
}
transformed data {
  int N = T - K;
  matrix[N, K] before; // column k holds the values k steps earlier
  vector[N] after = y[(K + 1) : T];
  for (k in 1 : K) {
    before[ : , k] = y[(K + 1 - k) : (T - k)];
  }
}
parameters {
  real alpha;
  vector[K] beta;
  real<lower=0> sigma;
}
model {
  alpha ~ normal(0, 10);
  beta ~ normal(0, 10);
  sigma ~ cauchy(0, 2.5);
  after ~ normal(alpha + before * beta, sigma);
}
