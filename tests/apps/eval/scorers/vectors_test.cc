// 150 answers that LongBench's metrics.py, rouge 1.0.1 and fuzzywuzzy 0.18 scored.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/eval/scorers/edit_similarity.h"
#include "apps/eval/scorers/scorer.h"

namespace mneme::eval {
namespace {

nlohmann::json vectors() {
  std::ifstream in(MNEME_DATA "/longbench.json");
  return nlohmann::json::parse(in);
}

void expect_near(double found, double wanted, const nlohmann::json& v, const char* what) {
  EXPECT_LE(std::abs(found - wanted), 1e-9) << what << ": " << v.dump();
}

TEST(LongBenchVectors, AreAllThere) {
  EXPECT_EQ(vectors().size(), 150u);
}

TEST(LongBenchVectors, WordsRougeCodeAndClassesAreEqual) {
  for (const auto& v : vectors()) {
    const std::string answer = v.at("pred");
    const Reference gold{{v.at("gold").get<std::string>()}, {}};
    expect_near(score_f1(answer, gold), v.at("qa_f1"), v, "qa_f1");
    expect_near(score_rouge_l(answer, gold), v.at("rouge_l"), v, "rouge_l");
    expect_near(score_code(answer, gold), v.at("code_sim_levenshtein"), v, "code_sim_levenshtein");
    expect_near(score_code_difflib(answer, gold), v.at("code_sim_difflib"), v, "code_sim_difflib");
    const Reference label{{v.at("cls_gold").get<std::string>()}, v.at("cls_all").get<std::vector<std::string>>()};
    expect_near(score_classification(v.at("cls_pred").get<std::string>(), label), v.at("cls"), v, "cls");
  }
}

}  // namespace
}  // namespace mneme::eval
