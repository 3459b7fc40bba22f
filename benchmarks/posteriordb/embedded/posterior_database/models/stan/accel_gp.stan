// Gaussian processes for the mean and for the logarithm of the standard deviation, each by basis
// functions whose weights have the spectral density of a squared exponential covariance.
functions {
  vector process(matrix basis, vector frequency, real sd, real length_scale, vector weights) {
    real amplitude = sd * sqrt(length_scale) * (2 * pi()) ^ 0.25;
    return basis * (amplitude * exp(-0.25 * square(length_scale * frequency)) .* weights);
  }
}
data {
  int<lower=1> N;
  vector[N] Y;
  int<lower=1> NBgp_1;
  matrix[N, NBgp_1] Xgp_1;
  matrix[NBgp_1, 1] slambda_1;
  int<lower=1> NBgp_sigma_1;
  matrix[N, NBgp_sigma_1] Xgp_sigma_1;
  matrix[NBgp_sigma_1, 1] slambda_sigma_1;
}
parameters {
  real Intercept;
  real<lower=0> sdgp_1;
  real<lower=0> lscale_1;
  vector[NBgp_1] zgp_1;
  real Intercept_sigma;
  real<lower=0> sdgp_sigma_1;
  real<lower=0> lscale_sigma_1;
  vector[NBgp_sigma_1] zgp_sigma_1;
}
model {
  vector[N] mean_Y = Intercept
                     + process(Xgp_1, slambda_1[ : , 1], sdgp_1, lscale_1, zgp_1);
  vector[N] log_sd = Intercept_sigma
                     + process(Xgp_sigma_1, slambda_sigma_1[ : , 1], sdgp_sigma_1, lscale_sigma_1,
                               zgp_sigma_1);
  Intercept ~ student_t(3, -13, 36);
  sdgp_1 ~ student_t(3, 0, 36);
  lscale_1 ~ inv_gamma(1.124909, 0.0177);
  zgp_1 ~ std_normal();
  Intercept_sigma ~ student_t(3, 0, 10);
  sdgp_sigma_1 ~ student_t(3, 0, 36);
  lscale_sigma_1 ~ inv_gamma(1.124909, 0.0177);
  zgp_sigma_1 ~ std_normal();
  Y ~ normal(mean_Y, exp(log_sd));
}
