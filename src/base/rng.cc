#include "src/base/rng.h"

#include <cmath>
#include <numbers>

namespace mneme {

double Rng::normal() {
  const double u = 1.0 - uniform();  // (0, 1]
  const double v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace mneme
