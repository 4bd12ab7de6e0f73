// The file of a session: what is written is read, and nothing else.
#include "src/engine/session/session_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/base/rng.h"
#include "tests/engine/session/session_bytes.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Layout = SessionLayout;

SessionContent small_content() {
  SessionContent c;
  c.identity = {.architecture = "llama",
                .name = "Nadel \xc3\xa4",
                .vocab = 300,
                .weights = 1,
                .tokenizer = 2,
                .rope = 3,
                .kv = {.n_layers = 2, .n_kv_heads = 3, .head_dim = 4, .dtype = DType::kF16}};
  c.random = RandomPosition{.seed = ~std::uint64_t{0}, .draws = 77};
  c.document = Turn{.document = "It rained.", .question = "", .system = "Be brief."};
  for (std::int32_t t = 0; t < 9; ++t) c.tokens.push_back(t * 33 % 300);
  c.n_computed = 8;
  return c;
}

// The same, of which heads have dropped something, one of them everything, and one sums of attention.
SessionContent dropped_content() {
  SessionContent c = small_content();
  SavedMethod m;
  m.budgets = {0, 7};
  m.heads.assign(6, {.stored = {{0, 8}}, .mass = {}});
  m.heads[1] = {.stored = {{0, 2}, {5, 8}}, .mass = {1.0f, 0.5f, 0.25f, 3.0f, 0.0f}};
  m.heads[4].stored.clear();
  c.method = m;
  return c;
}

// Of a method that decides how prompts are read.
SessionContent read_content() {
  SessionContent c = small_content();
  c.reading = SavedReading{.recipe = "actqkv budget=512", .state = {std::byte{1}, std::byte{2}, std::byte{3}}};
  return c;
}

std::byte kv_byte(std::int32_t layer, std::int32_t head, std::size_t i) {
  return static_cast<std::byte>(layer * 100 + head * 31 + static_cast<std::int32_t>(i * 7));
}

// Written in two pieces a head.
void fill_kv(const SessionContent& c, std::int32_t layer, std::int32_t head,
             FunctionRef<void(std::span<const std::byte>)> out) {
  Bytes all(c.identity.kv.token_bytes() * c.n_stored(layer, head));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = kv_byte(layer, head, i);
  out(std::span(all).first(all.size() / 3));
  out(std::span(all).subspan(all.size() / 3));
}

class SessionFileTest : public ::testing::Test {
 protected:
  SessionFileTest() {
    folder_ = std::filesystem::temp_directory_path() / ("mneme_session_XXXXXX");
    std::string name = folder_.string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "a.session";
  }
  ~SessionFileTest() override { std::filesystem::remove_all(folder_); }

  Bytes written(const SessionContent& c) const {
    write_session(path_, c, [&](std::int32_t l, std::int32_t h, FunctionRef<void(std::span<const std::byte>)> out) {
      fill_kv(c, l, h, out);
    });
    const MappedFile file(path_);
    return {file.bytes().begin(), file.bytes().end()};
  }

  // Empty: it was accepted.
  static std::string refusal(const Bytes& bytes, SessionFile::Check check = SessionFile::Check::kEverything) {
    try {
      SessionFile::parse(bytes, "x", check);
    } catch (const Error& e) {
      EXPECT_TRUE(e.kind() == ErrorKind::kFormat || e.kind() == ErrorKind::kUnsupported) << e.what();
      return e.what();
    }
    return "";
  }

  std::filesystem::path folder_, path_;
};

TEST_F(SessionFileTest, WhatIsWrittenIsRead) {
  const SessionContent c = small_content();
  const Bytes bytes = written(c);
  const SessionFile file = SessionFile::parse(bytes, "x");
  const SessionContent& r = file.content();
  EXPECT_EQ(r.identity.architecture, c.identity.architecture);
  EXPECT_EQ(r.identity.name, c.identity.name);
  EXPECT_EQ(r.identity.vocab, 300);
  EXPECT_EQ(r.identity.kv, c.identity.kv);
  EXPECT_EQ(r.random, c.random);
  ASSERT_TRUE(r.document);
  EXPECT_EQ(r.document->document, "It rained.");
  EXPECT_EQ(r.document->system, "Be brief.");
  EXPECT_EQ(r.tokens, c.tokens);
  EXPECT_EQ(r.n_computed, 8);
  for (std::int32_t l = 0; l < 2; ++l) {
    for (std::int32_t h = 0; h < 3; ++h) {
      const auto kv = file.kv(l, h);
      ASSERT_EQ(kv.size(), 8u * 16);
      for (std::size_t i = 0; i < kv.size(); ++i) ASSERT_EQ(kv[i], kv_byte(l, h, i));
    }
  }
  expect_same_model(r.identity, c.identity, "x");

  SessionContent other = c;
  other.document.reset();
  other.random.reset();
  other.answered = true;
  other.framing = Framing::kRaw;
  other.n_computed = 0;
  const Bytes plain = written(other);
  const SessionContent p = SessionFile::parse(plain, "x").content();
  EXPECT_FALSE(p.document);
  EXPECT_FALSE(p.random);
  EXPECT_TRUE(p.answered);
  EXPECT_EQ(p.framing, Framing::kRaw);
  EXPECT_EQ(p.n_computed, 0);
}

TEST_F(SessionFileTest, WhatAMethodDroppedIsRead) {
  const SessionContent c = dropped_content();
  const Bytes bytes = written(c);
  EXPECT_EQ(bytes[8], std::byte{2});
  EXPECT_EQ(written(small_content())[8], std::byte{1}) << "older programs read what they can";
  const SessionFile file = SessionFile::parse(bytes, "x");
  EXPECT_EQ(file.content().method, c.method);
  for (std::int32_t l = 0; l < 2; ++l)
    for (std::int32_t h = 0; h < 3; ++h) {
      const auto kv = file.kv(l, h);
      ASSERT_EQ(kv.size(), static_cast<std::size_t>(c.n_stored(l, h)) * 16);
      for (std::size_t i = 0; i < kv.size(); ++i) ASSERT_EQ(kv[i], kv_byte(l, h, i));
    }
}

TEST_F(SessionFileTest, HowPromptsWereReadIsRead) {
  for (SessionContent c : {read_content(), dropped_content()}) {
    c.reading = read_content().reading;
    const Bytes bytes = written(c);
    EXPECT_EQ(bytes[8], std::byte{3});
    const SessionFile file = SessionFile::parse(bytes, "x");
    EXPECT_EQ(file.content().reading, c.reading);
    EXPECT_EQ(file.content().method, c.method);
    EXPECT_EQ(file.kv(1, 2).size(), static_cast<std::size_t>(c.n_stored(1, 2)) * 16);
  }
}

TEST_F(SessionFileTest, EveryFlippedBitIsNoticed) {
  for (Bytes bytes : {written(small_content()), written(dropped_content()), written(read_content())}) {
    ASSERT_EQ(refusal(bytes), "");
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        bytes[i] ^= static_cast<std::byte>(1 << bit);
        ASSERT_NE(refusal(bytes), "") << "byte " << i << " bit " << bit;
        bytes[i] ^= static_cast<std::byte>(1 << bit);
      }
    }
  }
}

TEST_F(SessionFileTest, EveryTruncationAndEveryTailIsNoticed) {
  const Bytes bytes = written(dropped_content());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    ASSERT_NE(refusal(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n))), "") << n;
    ASSERT_NE(
        refusal(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)), SessionFile::Check::kWithoutKv),
        "")
        << n;
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THAT(refusal(longer), HasSubstr("the header says"));
  reseal(longer);
  EXPECT_THAT(refusal(longer), HasSubstr("the header says"));
}

// Damage whose checksums are right: nothing may crash, and what is accepted can be read to the last byte.
TEST_F(SessionFileTest, ResealedDamageIsRefusedOrHarmless) {
  const Bytes whole = written(small_content()), dropped = written(dropped_content());
  Rng rng(5);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes = round % 4 < 2 ? whole : dropped;
    const auto n = 1 + rng.below(3);
    for (std::uint64_t k = 0; k < n; ++k)
      bytes[rng.below(round % 2 == 0 ? 480 : bytes.size())] = static_cast<std::byte>(rng.next());
    if (round % 4 == 3)  // in the last section
      bytes[bytes.size() - 1 - rng.below(140)] = static_cast<std::byte>(rng.next());
    if (round % 5 == 0) bytes.resize(rng.below(bytes.size() + 1));
    reseal(bytes);
    try {
      const SessionFile file = SessionFile::parse(bytes, "x");
      const KvShape& kv = file.content().identity.kv;
      ASSERT_EQ(
          file.kv(kv.n_layers - 1, kv.n_kv_heads - 1).size(),
          kv.token_bytes() * static_cast<std::size_t>(file.content().n_stored(kv.n_layers - 1, kv.n_kv_heads - 1)));
      ++accepted;
    } catch (const Error& e) {
      ASSERT_TRUE(e.kind() == ErrorKind::kFormat || e.kind() == ErrorKind::kUnsupported) << e.what();
    }
  }
  EXPECT_GT(accepted, 0) << "names, hashes and tokens may be anything";
}

TEST_F(SessionFileTest, LiesAreNamed) {
  const Bytes good = written(small_content());
  const auto with = [&](Layout::Section section, std::size_t at, auto value) {
    Bytes bytes = good;
    Layout::Entry entry;
    std::memcpy(&entry, bytes.data() + Layout::kEntries + section * sizeof(entry), sizeof(entry));
    std::memcpy(bytes.data() + entry.offset + at, &value, sizeof(value));
    reseal(bytes);
    return refusal(bytes);
  };
  using I = std::int64_t;
  EXPECT_THAT(with(Layout::kState, 20, I{10}), HasSubstr("10 tokens in 36 bytes"));
  EXPECT_THAT(with(Layout::kState, 20, I{1} << 40), HasSubstr("tokens: expected 1 to"));
  EXPECT_THAT(with(Layout::kState, 28, I{9}), HasSubstr("keys and values of 9 tokens, 96 bytes each, in 768"));
  EXPECT_THAT(with(Layout::kState, 28, I{10}), HasSubstr("tokens computed: expected 0 to 9, found 10"));
  EXPECT_THAT(with(Layout::kState, 0, std::uint8_t{2}), HasSubstr("answered: expected 0 or 1"));
  EXPECT_THAT(with(Layout::kState, 0, std::uint8_t{1}), HasSubstr("a document waits"));
  EXPECT_THAT(with(Layout::kTokens, 4, std::int32_t{300}), HasSubstr("token 300 at 1 is not in the vocabulary"));
  EXPECT_THAT(with(Layout::kTokens, 0, std::int32_t{-1}), HasSubstr("token -1 at 0"));
  EXPECT_THAT(with(Layout::kModel, 0, std::uint64_t{1} << 60), HasSubstr("architecture"));
  EXPECT_THAT(with(Layout::kDocument, 0, std::uint64_t{1000}), HasSubstr("document"));
  // Shape and type, after "llama", "Nadel ä" (8 bytes) and "f16".
  constexpr std::size_t kType = 8 + 5 + 8 + 8 + 8, kNumbers = kType + 3;
  EXPECT_THAT(with(Layout::kModel, kType, 'q'), HasSubstr("expected bf16, f16, int8 or fp8, found \"q16\""));
  EXPECT_THAT(with(Layout::kModel, kNumbers, I{0}), HasSubstr("vocabulary: expected 1"));
  EXPECT_THAT(with(Layout::kModel, kNumbers + 8, I{65536}), HasSubstr("keys and values of 8 tokens"));
  EXPECT_THAT(with(Layout::kModel, kNumbers + 16, I{1} << 33), HasSubstr("KV heads: expected 1"));
}

TEST_F(SessionFileTest, LiesAboutWhatIsLeftAreNamed) {
  const auto with = [&](const std::function<void(SavedMethod&)>& change) {
    SessionContent c = dropped_content();
    SavedMethod lie = *c.method;
    change(lie);
    // Written as it is, with the keys and values of the truth.
    const Bytes good = written(c);
    Layout::Entry entry;
    std::byte* const at = const_cast<std::byte*>(good.data()) + Layout::kEntries + Layout::kMethod * sizeof(entry);
    std::memcpy(&entry, at, sizeof(entry));
    Bytes bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(entry.offset));
    const auto put = [&](auto value) {
      const auto raw = std::as_bytes(std::span(&value, 1));
      bytes.insert(bytes.end(), raw.begin(), raw.end());
    };
    for (std::size_t l = 0; l < 2; ++l) {
      put(lie.budgets[l]);
      for (std::size_t h = 0; h < 3; ++h) {
        const SavedHead& head = lie.heads[3 * l + h];
        put(static_cast<std::uint32_t>(head.stored.size()));
        for (const TokenRange& r : head.stored) put(r);
        put(static_cast<std::uint32_t>(head.mass.size()));
        for (float m : head.mass) put(m);
      }
    }
    entry.bytes = bytes.size() - entry.offset;
    std::memcpy(bytes.data() + Layout::kEntries + Layout::kMethod * sizeof(entry), &entry, sizeof(entry));
    const std::uint64_t size = bytes.size();
    std::memcpy(bytes.data() + 16, &size, sizeof(size));
    reseal(bytes);
    return refusal(bytes);
  };
  EXPECT_EQ(with([](SavedMethod&) {}), "");
  EXPECT_THAT(with([](SavedMethod& m) { m.budgets[1] = -1; }), HasSubstr("budget of a layer"));
  EXPECT_THAT(with([](SavedMethod& m) { m.heads[0].stored[0].end = 9; }), HasSubstr("kept tokens [0, 9) after 0 of 8"));
  EXPECT_THAT(with([](SavedMethod& m) { m.heads[0].stored[0].begin = -1; }), HasSubstr("kept tokens [-1, 8)"));
  EXPECT_THAT(with([](SavedMethod& m) { m.heads[1].stored[1].begin = 1; }), HasSubstr("[1, 8) after 2"));
  EXPECT_THAT(with([](SavedMethod& m) { m.heads[1].stored[0] = {3, 3}; }), HasSubstr("[3, 3)"));
  EXPECT_THAT(with([](SavedMethod& m) { m.heads[1].mass.pop_back(); }), HasSubstr("4 sums of attention for 5 tokens"));
  EXPECT_THAT(with([](SavedMethod& m) { m.heads[3].stored = {{0, 7}}; }), HasSubstr("keys and values of 36 tokens"));
}

TEST_F(SessionFileTest, OtherFilesAreNotSessions) {
  EXPECT_THAT(refusal({}), HasSubstr("expected a saved session"));
  EXPECT_THAT(refusal(Bytes(4096)), HasSubstr("expected a saved session"));
  Bytes newer = written(small_content());
  newer[8] = std::byte{4};
  reseal(newer);
  EXPECT_THAT(refusal(newer), HasSubstr("format version 4"));
  for (const int version : {2, 3}) {  // that have more sections
    newer[8] = static_cast<std::byte>(version);
    reseal(newer);
    EXPECT_THAT(refusal(newer), HasSubstr("damaged"));
  }
}

TEST_F(SessionFileTest, AnotherModelIsNamed) {
  const SessionIdentity saved = small_content().identity;
  const auto words = [&](const std::function<void(SessionIdentity&)>& change) -> std::string {
    SessionIdentity running = saved;
    change(running);
    try {
      expect_same_model(saved, running, "file");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kRequest);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(words([](SessionIdentity& m) { m.name = "another name"; }), "");
  EXPECT_THAT(words([](SessionIdentity& m) { m.architecture = "qwen2"; }), HasSubstr("architecture llama"));
  EXPECT_THAT(words([](SessionIdentity& m) { m.weights = 9; }), HasSubstr("weights 0000000000000001"));
  EXPECT_THAT(words([](SessionIdentity& m) { m.tokenizer = 9; }), HasSubstr("tokenizer"));
  EXPECT_THAT(words([](SessionIdentity& m) { m.rope = 9; }), HasSubstr("position embedding"));
  EXPECT_THAT(words([](SessionIdentity& m) { m.vocab = 9; }), HasSubstr("vocabulary 300"));
  EXPECT_THAT(words([](SessionIdentity& m) { m.kv.n_layers = 9; }), HasSubstr("layers 2"));
  EXPECT_THAT(words([](SessionIdentity& m) { m.kv.dtype = DType::kBF16; }), HasSubstr("keys and values in f16"));
}

TEST_F(SessionFileTest, WhatFailsOnTheWayLeavesTheOldFileAndNoOther) {
  const SessionContent c = small_content();
  const Bytes before = written(c);
  const auto failing = [](std::int32_t, std::int32_t, FunctionRef<void(std::span<const std::byte>)>) {
    throw Error(ErrorKind::kFile, "the disk is full");
  };
  EXPECT_THROW(write_session(path_, c, failing), Error);
  const MappedFile after(path_);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.bytes().begin(), after.bytes().end()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  const auto kind = [&](const std::filesystem::path& path) {
    try {
      write_session(path, c, failing);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(kind(folder_), HasSubstr("a folder is there"));
  EXPECT_THAT(kind(folder_ / "none" / "x"), HasSubstr("No such file or directory"));
  EXPECT_THAT(kind("/dev/null"), HasSubstr("not a plain file"));

  std::filesystem::create_symlink(path_, folder_ / "link");
  write_session(
      folder_ / "link", c,
      [&](std::int32_t l, std::int32_t h, FunctionRef<void(std::span<const std::byte>)> o) { fill_kv(c, l, h, o); });
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link")) << "a link's target is replaced, not the link";
}

}  // namespace
}  // namespace mneme
