// Two populations after Lotka and Volterra, observed with log-normal errors.
functions {
  vector growth(real time, vector z, vector theta) {
    return [z[1] * (theta[1] - theta[2] * z[2]),
            z[2] * (theta[4] * z[1] - theta[3])]';
  }
}
data {
  int<lower=1> N;
  array[N] real ts;
  vector<lower=0>[2] y_init; // prey and predator at time zero
  array[N] vector<lower=0>[2] y;
}
parameters {
  vector<lower=0>[4] theta;
  vector<lower=0>[2] z_init;
  vector<lower=0>[2] sigma;
}
transformed parameters {
  array[N] vector[2] z = ode_rk45_tol(growth, z_init, 0, ts, 1e-8, 1e-8, 10000, theta);
}
model {
  theta[{1, 3}] ~ normal(1, 0.5);
  theta[{2, 4}] ~ normal(0.05, 0.05);
  sigma ~ lognormal(-1, 1);
  z_init ~ lognormal(log(10), 1);
  y_init ~ lognormal(log(z_init), sigma);
  for (n in 1 : N) {
    y[n] ~ lognormal(log(z[n]), sigma);
  }
}
