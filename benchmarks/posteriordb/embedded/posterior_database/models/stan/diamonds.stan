// Linear regression with centred predictors, so that Intercept is the mean of the response.
data {
  int<lower=1> N;
  int<lower=2> K;
  vector[N] Y;
  matrix[N, K] X;  // the first column is of ones
}
transformed data {
  matrix[N, K - 1] centred;
  for (k in 2:K) {
    centred[, k - 1] = X[, k] - mean(X[, k]);
  }
}
parameters {
  vector[K - 1] b;
  real Intercept;
  real<lower=0> sigma;
}
model {
  b ~ std_normal();
  Intercept ~ student_t(3, 8, 10);
  sigma ~ student_t(3, 0, 10);
  Y ~ normal_id_glm(centred, Intercept, b, sigma);
}
