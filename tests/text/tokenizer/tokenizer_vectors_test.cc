// Texts with ids from the models' own tokenizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>

#include "src/formats/checkpoint.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"
#include "src/text/unicode/byte_chars.h"
#include "tests/text/tokenizer/test_data.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;
using test::read_file;

const fs::path kSource = MNEME_SOURCE_DIR;
const fs::path kData = kSource / "tests" / "text" / "tokenizer" / "data";

struct Vector {
  std::string text;
  Ids ids;
};

// llama.cpp's format: texts separated by "\n__ggml_vocab_test__\n", one line of ids for each.
std::vector<Vector> read_vectors(const fs::path& inp, const fs::path& out) {
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";
  std::vector<Vector> vectors;
  const std::string texts = read_file(inp);
  std::istringstream lines(read_file(out));
  for (std::size_t begin = 0; begin <= texts.size();) {
    const std::size_t end = std::min(texts.find(kBetween, begin), texts.size());
    Vector v{texts.substr(begin, end - begin), {}};
    std::string line;  // the last text is empty and has no line
    std::getline(lines, line);
    std::istringstream ids(line);
    for (TokenId id; ids >> id;) v.ids.push_back(id);
    vectors.push_back(std::move(v));
    begin = end + kBetween.size();
  }
  return vectors;
}

void check_vectors(const Tokenizer& tokenizer, const std::vector<Vector>& vectors) {
  for (const Vector& v : vectors) {
    const Ids ids = tokenizer.encode(v.text, {});
    EXPECT_EQ(ids, v.ids) << "text: " << v.text;
    EXPECT_EQ(tokenizer.decode(v.ids), v.text);
  }
}

TEST(TokenizerVectors, Gpt2) {
  const auto t = Tokenizer::make(Checkpoint::open_tokenizer(kData / "ggml-vocab-gpt-2.gguf"));
  const auto vectors = read_vectors(kData / "ggml-vocab-gpt-2.gguf.inp", kData / "ggml-vocab-gpt-2.gguf.out");
  ASSERT_EQ(vectors.size(), 47u);
  check_vectors(*t, vectors);
}

TEST(TokenizerVectors, Llama3) {
  const fs::path folder = test::shared_folder() / "data" / "tokenizers";
  if (!fs::exists(folder / "llama-3.tiktoken")) {
    GTEST_SKIP() << "no " << (folder / "llama-3.tiktoken")
                 << "; set MNEME_SHARED to the folder that holds data/tokenizers";
  }
  const auto t = Tokenizer::make(test::read_tiktoken(folder / "llama-3.tiktoken"));
  ASSERT_EQ(t->bos(), 128000);
  const auto vectors = read_vectors(folder / "ggml-vocab-llama-bpe.gguf.inp", folder / "ggml-vocab-llama-bpe.gguf.out");
  ASSERT_EQ(vectors.size(), 47u);
  check_vectors(*t, vectors);
}

TEST(TokenizerVectors, NeedleComesBackAndFramesItsPrompt) {
  const auto t = Tokenizer::make(Checkpoint::open_tokenizer(kSource / "models" / "needle-27m-q8_0.gguf"));
  const std::string text = read_file(kSource / "models" / "README.md") + read_file(kData / "ggml-vocab-gpt-2.gguf.inp");
  EXPECT_EQ(t->decode(t->encode(text, {})), text);
  const auto chat = ChatFormat::detect(*t);
  ASSERT_EQ(chat.family(), ChatFamily::kNeedle);
  const Ids turn = chat.user_turn({.document = "A <|end|> B.", .question = "Who?"}, true);
  EXPECT_EQ(std::count(turn.begin(), turn.end(), *t->find("<|end|>")), 1);
  EXPECT_EQ(t->decode(turn, true), "<|bos|><|user|>A <|end|> B.\n\n\nWho?<|end|><|assistant|>");
  EXPECT_TRUE(t->is_end(*t->find("<|end|>")));
}

// Output of Hugging Face's and Google's libraries for a few hundred texts (tools/make_tokenizer_vectors.py): the
// shipped model's vocabulary with three pre-tokenizers, and small SentencePiece vocabularies, by merges and by scores.
TokenizerData data_of(const nlohmann::json& j) {
  if (!j.contains("tokens")) {
    TokenizerData data = Checkpoint::open_tokenizer(kSource / "models" / "needle-27m-q8_0.gguf");
    data.pre.clear();
    data.pre_patterns = j.at("patterns").get<std::vector<std::string>>();
    return data;
  }
  TokenizerData data;
  data.kind = TokenizerKind::kSentencePiece;
  data.add_space_prefix = j.at("add_space_prefix");
  data.tokens = j.at("tokens").get<std::vector<std::string>>();
  const std::map<char, TokenType> types = {
      {'n', TokenType::kNormal}, {'u', TokenType::kUnknown}, {'c', TokenType::kControl}, {'b', TokenType::kByte}};
  for (const char c : j.at("types").get<std::string>()) data.types.push_back(types.at(c));
  if (j.contains("scores")) data.scores = j.at("scores").get<std::vector<float>>();
  for (const auto& merge : j.at("merges")) data.merges.emplace_back(merge.at(0), merge.at(1));
  data.unk = j.at("unk").get<TokenId>();
  return data;
}

TEST(TokenizerVectors, OtherLibraries) {
  const auto root = nlohmann::json::parse(read_file(kData / "hf-vectors.json"));
  const auto texts = root.at("texts").get<std::vector<std::string>>();
  ASSERT_GE(texts.size(), 100u);
  ASSERT_EQ(root.at("tokenizers").size(), 5u);
  for (const auto& j : root.at("tokenizers")) {
    SCOPED_TRACE(j.at("name").get<std::string>());
    const auto t = Tokenizer::make(data_of(j));
    std::vector<Vector> vectors;
    for (std::size_t i = 0; i < texts.size(); ++i) vectors.push_back({texts[i], j.at("ids").at(i).get<Ids>()});
    check_vectors(*t, vectors);
  }
}

}  // namespace
}  // namespace mneme
