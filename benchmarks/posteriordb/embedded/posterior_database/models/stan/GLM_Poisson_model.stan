// Counts whose log rate is a cubic polynomial of the year. The bounds are the uniform priors.
data {
  int<lower=1> n;
  array[n] int<lower=0> C;
  vector[n] year;
}
transformed data {
  matrix[n, 3] powers = append_col(append_col(year, square(year)), year .* square(year));
}
parameters {
  real<lower=-20, upper=20> alpha;
  real<lower=-10, upper=10> beta1;
  real<lower=-10, upper=10> beta2;
  real<lower=-10, upper=10> beta3;
}
transformed parameters {
  vector[n] log_lambda = alpha + powers * [beta1, beta2, beta3]';
}
model {
  C ~ poisson_log(log_lambda);
}
generated quantities {
  vector[n] lambda = exp(log_lambda);
}
