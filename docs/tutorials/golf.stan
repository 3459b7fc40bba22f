// Golf: a putt goes in when the angle that it leaves at is off by less than the hole allows.
data {
  int<lower=1> J;                   // distances
  vector<lower=0>[J] distance;      // in feet
  array[J] int<lower=0> tries;
  array[J] int<lower=0> holed;
}
transformed data {
  real hole = 4.25 / 2 / 12;        // radii in feet
  real ball = 1.68 / 2 / 12;
  vector[J] allowed = asin((hole - ball) ./ distance);
}
parameters {
  real<lower=0> angle;              // spread of the angle, in radians
  real<lower=0> other;              // spread of the share holed, for all else
}
transformed parameters {
  vector[J] share = 2 * Phi(allowed / angle) - 1;
  vector[J] spread;
  for (j in 1:J) spread[j] = sqrt(share[j] * (1 - share[j]) / tries[j] + square(other));
}
model {
  angle ~ normal(0, 0.1);
  other ~ normal(0, 0.1);
  to_vector(holed) ./ to_vector(tries) ~ normal(share, spread);
}
generated quantities {
  real degrees = angle * 180 / pi();
  array[J] real again = normal_rng(share, spread);
}
