// What an answer is worth against its references, by named rules.
//
// A suite names the scorer of each task; `--grader` names another one for all of them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::eval {

struct Reference {
  std::vector<std::string> answers;  // any of them, unless the scorer says otherwise
  std::vector<std::string> classes;  // labels of a classification
};

struct ScorerEntry {
  std::string_view name;
  std::string_view summary;
  // 0 to 1. Requires  at least one answer in the reference.
  double (*score)(std::string_view answer, const Reference& reference);
};

std::span<const ScorerEntry> scorer_table();
// Errors  kOption: no such scorer (the known ones are named).
const ScorerEntry& find_scorer(std::string_view name);

// The scorers, by file. The best over the answers of the reference, unless the comment says otherwise.
//
// f1.cc: overlap of words (normalised), of characters; ROUGE-L in two forms, and of characters.
double score_f1(std::string_view answer, const Reference& reference);
double score_f1_characters(std::string_view answer, const Reference& reference);
double score_rouge_l(std::string_view answer, const Reference& reference);
double score_rouge_l_characters(std::string_view answer, const Reference& reference);
double score_rouge_l_sum(std::string_view answer, const Reference& reference);
double score_code(std::string_view answer, const Reference& reference);
double score_code_difflib(std::string_view answer, const Reference& reference);

// labels.cc: LongBench's classes, paragraph numbers and counts.
double score_classification(std::string_view answer, const Reference& reference);
double score_retrieval(std::string_view answer, const Reference& reference);
double score_retrieval_zh(std::string_view answer, const Reference& reference);
double score_count(std::string_view answer, const Reference& reference);

// contained.cc: equality and substrings. `contains_all`: the share of answers that are found (RULER).
double score_exact(std::string_view answer, const Reference& reference);
double score_normalised(std::string_view answer, const Reference& reference);
double score_contained(std::string_view answer, const Reference& reference);
double score_contains_all(std::string_view answer, const Reference& reference);
double score_contains_any(std::string_view answer, const Reference& reference);
double score_word(std::string_view answer, const Reference& reference);
double score_dialogue(std::string_view answer, const Reference& reference);
double score_event_words(std::string_view answer, const Reference& reference);

// letters.cc: multiple choice.
double score_letter(std::string_view answer, const Reference& reference);
double score_longbench_v2(std::string_view answer, const Reference& reference);
double score_gpqa(std::string_view answer, const Reference& reference);
double score_infinitebench_choice(std::string_view answer, const Reference& reference);
double score_code_debug(std::string_view answer, const Reference& reference);

// numbers.cc: numbers and boxed answers.
double score_first_digits(std::string_view answer, const Reference& reference);
double score_first_number(std::string_view answer, const Reference& reference);
double score_last_number(std::string_view answer, const Reference& reference);
double score_number_list(std::string_view answer, const Reference& reference);
double score_last_word(std::string_view answer, const Reference& reference);
double score_boxed(std::string_view answer, const Reference& reference);
double score_boxed_final(std::string_view answer, const Reference& reference);
double score_aime(std::string_view answer, const Reference& reference);

// lines.cc: long answers. `lines`: the share of the reference's lines that occur in their order. `completion`: the
// share of entries 1 to N that a long plan has (LongGenBench's completion rate; the reference is "TYPE N").
double score_lines(std::string_view answer, const Reference& reference);
double score_completion(std::string_view answer, const Reference& reference);

}  // namespace mneme::eval
