// One compartment: first-order absorption of a dose, Michaelis-Menten elimination.
functions {
  vector change(real time, vector concentration, real t0, real dose, real k_a, real K_m,
                real rate) {
    real c = concentration[1];
    return [dose * k_a * exp(-k_a * (time - t0)) - rate * c / (K_m + c)]';
  }
}
data {
  real t0;
  real<lower=0> D; // dose
  real<lower=0> V; // volume
  int<lower=1> N_t;
  array[N_t] real times;
  vector<lower=0>[N_t] C_hat;
}
parameters {
  real<lower=0> k_a;
  real<lower=0> K_m;
  real<lower=0> V_m;
  real<lower=0> sigma;
}
model {
  vector[1] nothing = rep_vector(0, 1);
  array[N_t] vector[1] C = ode_bdf_tol(change, nothing, t0, times, 1e-8, 1e-10, 100000, t0, D / V,
                                       k_a, K_m, V_m / V);
  k_a ~ cauchy(0, 1);
  K_m ~ cauchy(0, 1);
  V_m ~ cauchy(0, 1);
  sigma ~ cauchy(0, 1);
  for (n in 1 : N_t) {
    C_hat[n] ~ lognormal(log(C[n, 1]), sigma);
  }
}
