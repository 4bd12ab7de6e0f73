// Why blocks of a recipe do not combine, for compile.h: one function a block, each appends its reasons.
#pragma once

#include <string>
#include <vector>

#include "src/recipes/compile.h"

namespace mneme {

// index=centroids:K, sketch:R and moments.
void check_summaries(const Recipe& recipe, std::vector<std::string>& reasons);
// domain=attention.
void check_domain(const Recipe& recipe, std::vector<std::string>& reasons);

// select=layer, hold=UNITS, cutoff=top_p:P, and forms of index=one_bit and representative.
void check_choice(const Recipe& recipe, std::vector<std::string>& reasons);
// rank=mass_var and rank=stamp. Requires  the recipe drops.
void check_rank(const Recipe& r, std::vector<std::string>& reasons);
// share=pyramid:BETA, heads:FLOOR and preference:TAU1-TAU2. Requires  the recipe drops.
void check_share(const Recipe& recipe, std::vector<std::string>& reasons);

}  // namespace mneme
