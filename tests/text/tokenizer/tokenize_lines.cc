// Reads JSON strings, one a line, and writes their token ids: what compare_with_tokenizers.py compares.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "src/formats/checkpoint.h"
#include "src/text/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines TOKENIZER.json < JSON strings\n";
    return 2;
  }
  const auto tokenizer = mneme::Tokenizer::make(mneme::Checkpoint::open_tokenizer(argv[1]));
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    for (const mneme::TokenId id : tokenizer->encode(text, {.parse_special = true})) std::cout << id << ' ';
    std::cout << '\n';
  }
  return 0;
}
