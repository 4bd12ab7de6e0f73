// Reads a document once and asks one question under two methods, in two forks that share its keys and values.
//
//   compare MODEL DOCUMENT QUESTION METHOD METHOD       compare m.gguf book.txt "Who?" full quest:budget=512
#include <mneme/mneme.h>

#include <fstream>
#include <iostream>
#include <iterator>

int main(int argc, char** argv) try {
  if (argc != 6) {
    std::cerr << "usage: compare MODEL DOCUMENT QUESTION METHOD METHOD\n";
    return 2;
  }
  std::ifstream file(argv[2]);
  const std::string document{std::istreambuf_iterator<char>(file), {}};

  mneme::LanguageModel model(argv[1]);
  mneme::Session book(model);
  book.read({.document = document});  // once, with full attention

  for (const char* text : {argv[4], argv[5]}) {
    mneme::Session session = book.fork();
    const mneme::Answer answer =
        session.ask({.question = argv[3]}, {.max_tokens = 64}, {.kv = mneme::parse_recipe(text), .top_logprobs = 0});
    double logprob = 0;
    for (const mneme::TokenScore& token : answer.scores) logprob += token.logprob;
    std::cout << text << ": " << answer.text << "\n";
    std::cerr << "  " << answer.stats.answer_tokens << " tokens, log-probability " << logprob << ", "
              << answer.stats.method.kv_bytes_per_step / 1024 << " KiB of keys and values a step\n";
  }
  return 0;
} catch (const mneme::Error& e) {
  std::cerr << "compare: " << mneme::error_kind_name(e.kind()) << ": " << e.what() << "\n";
  return 2;
}
