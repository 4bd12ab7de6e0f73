// ROUGE-L of two texts, as two Python packages compute it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mneme::eval {

using Sentences = std::vector<std::vector<std::string>>;  // words by sentence

// F of the PyPI package `rouge` 1.0.1 (LongBench): sentences end at full stops; the union of longest common
// subsequences is a set of distinct words, counted against the distinct words of each text. 0 where a text has no
// sentence.
double rouge_l(std::string_view answer, std::string_view reference);
// rouge_l() of sentences. Requires  at least one sentence in each for a value other than 0.
double rouge_l_of(const Sentences& answer, const Sentences& reference);
// rougeLsum of google's rouge_score without stemming (InfiniteBench's summaries): sentences are lines, words are runs of
// ASCII letters and digits in lower case, every word counts as often as it occurs.
double rouge_l_sum(std::string_view answer, std::string_view reference);

}  // namespace mneme::eval
