// needle_accuracy PROSE.txt... [--kv f16] [--model FILE] [--per-kind N]
//
// Exact answers of the shipped model by kind and length, documents made of the given novels. Not a test: it takes
// minutes.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/model/needle_runner.h"

namespace mneme {
namespace {

struct Arguments {
  std::vector<std::string> prose;
  std::filesystem::path model = needle_path();
  DType kv = DType::kBF16;
  int per_kind = 4;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string s = argv[i];
    const bool has_value = i + 1 < argc;
    if (s == "--kv" && has_value)
      a.kv = std::string(argv[++i]) == "f16" ? DType::kF16 : DType::kBF16;
    else if (s == "--model" && has_value)
      a.model = argv[++i];
    else if (s == "--per-kind" && has_value)
      a.per_kind = std::stoi(argv[++i]);
    else
      a.prose.push_back(s);
  }
  return a;
}

int run(const Arguments& a) {
  std::string prose;
  for (const std::string& path : a.prose) {
    std::ifstream in(path, std::ios::binary);
    prose.append(std::istreambuf_iterator<char>(in), {});
  }
  if (prose.size() < 100000) {
    fmt::print(stderr, "usage: needle_accuracy PROSE.txt... [--kv bf16|f16] [--model FILE] [--per-kind N]\n");
    return 2;
  }
  ThreadPool threads(available_cpus());
  NeedleRunner needle(a.model, a.kv, {.pool = &threads}, 20000);
  NeedleMaker maker(std::move(prose), 40);
  int right = 0, asked = 0;
  for (const std::size_t n_chars : {std::size_t{12000}, std::size_t{43000}})
    for (const NeedleKind kind :
         {NeedleKind::kNumber, NeedleKind::kWhere, NeedleKind::kNumbers, NeedleKind::kChain, NeedleKind::kRegister}) {
      int hits = 0;
      std::size_t tokens = 0;
      std::string name;
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < a.per_kind; ++i) {
        const NeedlePrompt prompt = maker.make(kind, n_chars);
        const NeedleAnswer answer = needle.answer(prompt);
        const bool hit = answer.ended && answer.text == prompt.answer;
        if (!hit) fmt::print("  {} expected '{}', got '{}'\n", prompt.question, prompt.answer, answer.text);
        hits += hit;
        tokens += answer.prompt_tokens;
        name = prompt.kind;
      }
      right += hits;
      asked += a.per_kind;
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      fmt::print("{:9} {:6} tokens  {}/{}  {:.1f} s\n", name, tokens / a.per_kind, hits, a.per_kind, seconds);
      std::fflush(stdout);
    }
  fmt::print("all {}/{}\n", right, asked);
  return 0;
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) {
  return mneme::run(mneme::parse(argc, argv));
}
