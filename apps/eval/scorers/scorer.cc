#include "apps/eval/scorers/scorer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "src/base/error.h"

namespace mneme::eval {
namespace {

constexpr std::array kTable = {
    ScorerEntry{"exact", "equal to an answer, white space at both ends apart", score_exact},
    ScorerEntry{"normalised", "equal without case, punctuation and articles", score_normalised},
    ScorerEntry{"contained", "an answer stands in it, both normalised", score_contained},
    ScorerEntry{"contains_all", "share of the answers that stand in it, without case (RULER)", score_contains_all},
    ScorerEntry{"contains_any", "one of the answers stands in it, without case (RULER's qa)", score_contains_any},
    ScorerEntry{"letter", "the option's letter, however it is said", score_letter},
    ScorerEntry{"last_number", "the last number equals the answer's last", score_last_number},
    ScorerEntry{"boxed", "\\boxed{} equals the answer, LaTeX normalised (MATH)", score_boxed},
    ScorerEntry{"boxed_final", "the first \\boxed{} after **Final Answer** (FreeKV)", score_boxed_final},
    ScorerEntry{"aime", "the integer in the last \\boxed{}", score_aime},
    ScorerEntry{"f1", "overlap of normalised words (LongBench's qa_f1)", score_f1},
    ScorerEntry{"f1_characters", "overlap of characters, for Chinese", score_f1_characters},
    ScorerEntry{"rouge_l", "ROUGE-L of the package rouge 1.0.1 (LongBench)", score_rouge_l},
    ScorerEntry{"rouge_l_characters", "the same of characters, for Chinese", score_rouge_l_characters},
    ScorerEntry{"rouge_l_sum", "rougeLsum of rouge_score (InfiniteBench)", score_rouge_l_sum},
    ScorerEntry{"classification", "LongBench's classes", score_classification},
    ScorerEntry{"retrieval", "share of numbers that are the paragraph's", score_retrieval},
    ScorerEntry{"retrieval_zh", "the same of Chinese paragraphs", score_retrieval_zh},
    ScorerEntry{"count", "share of numbers that are the count", score_count},
    ScorerEntry{"code", "similarity of a line of code (fuzz.ratio, Levenshtein)", score_code},
    ScorerEntry{"code_difflib", "the same without python-Levenshtein (difflib)", score_code_difflib},
    ScorerEntry{"longbench_v2", "\"The correct answer is (A)\"", score_longbench_v2},
    ScorerEntry{"gpqa", "\"Answer: A\"", score_gpqa},
    ScorerEntry{"first_digits", "the first run of digits is the answer", score_first_digits},
    ScorerEntry{"first_number", "the first number equals the answer", score_first_number},
    ScorerEntry{"number_list", "numbers in order, up to the first wrong one", score_number_list},
    ScorerEntry{"last_word", "the last word is the answer", score_last_word},
    ScorerEntry{"word", "the answer is one of the words (InfiniteBench's kv)", score_word},
    ScorerEntry{"dialogue", "the name is one of the words, in capitals", score_dialogue},
    ScorerEntry{"infinitebench_choice", "letter or text of the option", score_infinitebench_choice},
    ScorerEntry{"code_debug", "letter or name of the function", score_code_debug},
    ScorerEntry{"lines", "share of lines that are there, in order", score_lines},
    ScorerEntry{"completion", "share of entries that a long plan has (LongGenBench)", score_completion},
    ScorerEntry{"event_words", "words of the events, in place of a judge (LongGenBench)", score_event_words},
};

}  // namespace

std::span<const ScorerEntry> scorer_table() {
  return kTable;
}

const ScorerEntry& find_scorer(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ScorerEntry& row : kTable) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  fail(ErrorKind::kOption, "no scorer is called '{}'; there are: {}", name, fmt::join(names, ", "));
}

}  // namespace mneme::eval
