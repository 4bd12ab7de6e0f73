// Reads a document once, then answers every question from standard input, one a line, each from the document alone.
//
//   ask MODEL DOCUMENT < questions
#include <mneme/mneme.h>

#include <fstream>
#include <iostream>
#include <iterator>

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: ask MODEL DOCUMENT < questions\n";
    return 2;
  }
  std::ifstream file(argv[2]);
  const std::string document{std::istreambuf_iterator<char>(file), {}};

  mneme::LanguageModel model(argv[1]);
  mneme::Session book(model);
  book.read({.document = document});

  for (std::string question; std::getline(std::cin, question);) {
    mneme::Session session = book.fork();  // shares the keys and values of the document
    const mneme::Answer answer = session.ask({.question = question}, {.max_tokens = 64});
    std::cout << answer.text << "\n";
    std::cerr << "(" << answer.stats.shared_tokens << " tokens reused, " << answer.stats.prompt_tokens
              << " computed)\n";
  }
  return 0;
} catch (const mneme::Error& e) {
  std::cerr << "ask: " << mneme::error_kind_name(e.kind()) << ": " << e.what() << "\n";
  return 2;
}
