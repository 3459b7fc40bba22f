// Party identification on a scale of seven; the youngest age group is the baseline, priors are flat.
data {
  int<lower=1> N;
  vector[N] partyid7;
  vector[N] real_ideo;
  vector[N] race_adj;
  array[N] int<lower=1, upper=4> age_discrete;
  vector[N] educ1;
  vector[N] gender;
  vector[N] income;
}
transformed data {
  matrix[N, 9] design = rep_matrix(0, N, 9);
  design[, 1] = ones_vector(N);
  design[, 2] = real_ideo;
  design[, 3] = race_adj;
  for (i in 1:N) {
    if (age_discrete[i] > 1) {
      design[i, 2 + age_discrete[i]] = 1;
    }
  }
  design[, 7] = educ1;
  design[, 8] = gender;
  design[, 9] = income;
}
parameters {
  vector[9] beta;
  real<lower=0> sigma;
}
model {
  partyid7 ~ normal(design * beta, sigma);
}
