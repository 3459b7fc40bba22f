// Counts whose log rates are a Gaussian process over x, through standardised values.
data {
  int<lower=1> N;
  array[N] real x;
  array[N] int<lower=0> k;
}
parameters {
  real<lower=0> rho; // length scale
  real<lower=0> alpha; // standard deviation of the process
  vector[N] f_tilde;
}
transformed parameters {
  vector[N] f;
  {
    matrix[N, N] covariance = add_diag(gp_exp_quad_cov(x, alpha, rho), 1e-10);
    f = cholesky_decompose(covariance) * f_tilde;
  }
}
model {
  rho ~ gamma(25, 4);
  alpha ~ normal(0, 2);
  f_tilde ~ std_normal();
  k ~ poisson_log(f);
}
