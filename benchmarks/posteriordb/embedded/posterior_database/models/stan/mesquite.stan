// Yield of mesquite bushes on their sizes and group; all priors are flat.
data {
  int<lower=1> N;
  vector[N] weight;
  vector[N] diam1;
  vector[N] diam2;
  vector[N] canopy_height;
  vector[N] total_height;
  vector[N] density;
  vector[N] group;
}
transformed data {
  matrix[N, 7] design;
  design[, 1] = ones_vector(N);
  design[, 2] = diam1;
  design[, 3] = diam2;
  design[, 4] = canopy_height;
  design[, 5] = total_height;
  design[, 6] = density;
  design[, 7] = group;
}
parameters {
  vector[7] beta;
  real<lower=0> sigma;
}
model {
  weight ~ normal(design * beta, sigma);
}
