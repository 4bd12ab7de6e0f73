#include "src/engine/session/session_file.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/model_config.h"

namespace mneme {
namespace {

using Layout = SessionLayout;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void damaged(std::string_view name, const std::string& what) {
  fail(ErrorKind::kFormat, "{}: {}: the file is damaged", name, what);
}

// A number from `low` to `high`.
std::int64_t read_number(ByteReader& in, std::string_view name, std::string_view what, std::int64_t low,
                         std::int64_t high) {
  const auto value = in.read<std::int64_t>(what);
  if (value < low || value > high)
    damaged(name, fmt::format("{}: expected {} to {}, found {}", what, low, high, value));
  return value;
}

bool read_flag(ByteReader& in, std::string_view name, std::string_view what) {
  const auto value = in.read<std::uint8_t>(what);
  if (value > 1) damaged(name, fmt::format("{}: expected 0 or 1, found {}", what, value));
  return value == 1;
}

void expect_end(const ByteReader& in, std::string_view name, std::string_view section) {
  if (in.remaining() != 0) damaged(name, fmt::format("{} bytes are left over in section {}", in.remaining(), section));
}

using Sections = std::array<std::span<const std::byte>, Layout::kSections>;

constexpr std::array<std::string_view, Layout::kSections> kSectionNames = {
    "model", "state", "document", "tokens", "keys and values", "method", "reading"};

// Returns the version.
std::uint32_t read_header(std::span<const std::byte> bytes, std::string_view name) {
  const auto magic = std::as_bytes(std::span(Layout::kMagic));
  if (bytes.size() < magic.size() || !std::equal(magic.begin(), magic.end(), bytes.begin())) {
    fail(ErrorKind::kFormat, "{}: expected a saved session, found something else (the first bytes are not \"{}\")",
         name, Layout::kMagic);
  }
  ByteReader in(bytes.subspan(magic.size()), name);
  const auto version = in.read<std::uint32_t>("version");
  if (version < Layout::kVersionWithoutMethod || version > Layout::kVersion) {
    fail(ErrorKind::kUnsupported, "{}: a session of format version {}; this program reads versions {} to {}", name,
         version, Layout::kVersionWithoutMethod, Layout::kVersion);
  }
  const std::size_t header = Layout::header(version), checked = Layout::header_checksum(version);
  if (bytes.size() < header)
    damaged(name, fmt::format("{} bytes are fewer than the header's {}", bytes.size(), header));
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + checked, sizeof(checksum));
  if (checksum != session_checksum(bytes.first(checked))) damaged(name, "the header's checksum is wrong");
  const auto n_sections = in.read<std::uint32_t>("number of sections");
  if (n_sections != Layout::n_sections(version))
    damaged(name, fmt::format("{} sections, expected {}", n_sections, Layout::n_sections(version)));
  const auto size = in.read<std::uint64_t>("size of the file");
  if (size != bytes.size()) damaged(name, fmt::format("the header says {} bytes, the file has {}", size, bytes.size()));
  return version;
}

// Sections lie one after the other, zeros between them, and end where the file ends. One that the version does not have
// is empty.
Sections read_sections(std::span<const std::byte> bytes, std::string_view name, SessionFile::Check check) {
  const std::uint32_t version = read_header(bytes, name);
  Sections sections;
  std::uint64_t at = Layout::header(version);
  for (std::size_t i = 0; i < Layout::n_sections(version); ++i) {
    Layout::Entry entry;
    std::memcpy(&entry, bytes.data() + Layout::kEntries + i * sizeof(entry), sizeof(entry));
    const std::uint64_t begin = (at + Layout::kAlignment - 1) / Layout::kAlignment * Layout::kAlignment;
    if (entry.offset != begin || begin > bytes.size() || entry.bytes > bytes.size() - begin) {
      damaged(name, fmt::format("section {} has {} bytes at {}, expected it at {} in a file of {}", kSectionNames[i],
                                entry.bytes, entry.offset, begin, bytes.size()));
    }
    const auto between = bytes.subspan(at, begin - at);
    if (std::any_of(between.begin(), between.end(), [](std::byte b) { return b != std::byte{0}; }))
      damaged(name, fmt::format("there is something before section {}", kSectionNames[i]));
    sections[i] = bytes.subspan(begin, entry.bytes);
    if ((i != Layout::kKv || check == SessionFile::Check::kEverything) &&
        session_checksum(sections[i]) != entry.checksum)
      damaged(name, fmt::format("the checksum of section {} is wrong", kSectionNames[i]));
    at = begin + entry.bytes;
  }
  if (at != bytes.size()) damaged(name, fmt::format("{} bytes follow the last section", bytes.size() - at));
  return sections;
}

DType read_kv_dtype(std::string_view type, std::string_view name) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kInt8, DType::kFp8})
    if (type == dtype_name(dtype)) return dtype;
  damaged(name, fmt::format("type of keys and values: expected bf16, f16, int8 or fp8, found \"{}\"", type));
}

SessionIdentity read_model(std::span<const std::byte> bytes, std::string_view name) {
  ByteReader in(bytes, name);
  SessionIdentity m;
  m.architecture = in.string("architecture");
  m.name = in.string("name of the model");
  const std::string_view type = in.string("type of keys and values");
  m.kv.dtype = read_kv_dtype(type, name);
  m.vocab = read_number(in, name, "vocabulary", 1, kMost);
  m.kv.n_layers = count32(read_number(in, name, "layers", 1, 1 << 16));
  m.kv.n_kv_heads = count32(read_number(in, name, "KV heads", 1, 1 << 16));
  m.kv.head_dim = count32(read_number(in, name, "head size", 1, 1 << 16));
  m.weights = in.read<std::uint64_t>("hash of the weights");
  m.tokenizer = in.read<std::uint64_t>("hash of the tokenizer");
  m.rope = in.read<std::uint64_t>("hash of the position embedding");
  expect_end(in, name, kSectionNames[Layout::kModel]);
  return m;
}

// Returns the number of tokens.
std::int64_t read_state(std::span<const std::byte> bytes, std::string_view name, SessionContent& c) {
  ByteReader in(bytes, name);
  c.answered = read_flag(in, name, "answered");
  c.framing = read_flag(in, name, "framing") ? Framing::kRaw : Framing::kChat;
  if (read_flag(in, name, "document")) c.document.emplace();
  const bool drew = read_flag(in, name, "random numbers");
  RandomPosition random;
  random.seed = in.read<std::uint64_t>("seed");
  random.draws = in.read<std::uint64_t>("draws");
  if (drew) c.random = random;
  const std::int64_t n_tokens = read_number(in, name, "tokens", 1, kMost);
  c.n_computed = count32(read_number(in, name, "tokens computed", 0, n_tokens));
  expect_end(in, name, kSectionNames[Layout::kState]);
  return n_tokens;
}

void read_document(std::span<const std::byte> bytes, std::string_view name, SessionContent& c) {
  ByteReader in(bytes, name);
  if (c.document) {
    c.document->document = in.string("document");
    c.document->system = in.string("system text");
    if (c.document->document.empty() || c.answered || c.framing != Framing::kChat)
      damaged(name, "a document waits for its question where none can");
  }
  expect_end(in, name, kSectionNames[Layout::kDocument]);
}

void read_tokens(std::span<const std::byte> bytes, std::string_view name, std::int64_t n, SessionContent& c) {
  if (bytes.size() != n * sizeof(std::int32_t)) damaged(name, fmt::format("{} tokens in {} bytes", n, bytes.size()));
  c.tokens.resize(n);
  std::memcpy(c.tokens.data(), bytes.data(), bytes.size());
  const auto stray =
      std::find_if(c.tokens.begin(), c.tokens.end(), [&](std::int32_t t) { return t < 0 || t >= c.identity.vocab; });
  if (stray != c.tokens.end())
    damaged(name, fmt::format("token {} at {} is not in the vocabulary, which has {}", *stray, stray - c.tokens.begin(),
                              c.identity.vocab));
}

// Numbers of some kind, one after the other.
template <typename T>
std::vector<T> read_list(ByteReader& in, std::string_view name, std::string_view what) {
  const auto n = in.read<std::uint32_t>(what);
  if (n > in.remaining() / sizeof(T)) damaged(name, fmt::format("{} {}, {} bytes are left", n, what, in.remaining()));
  std::vector<T> list(n);
  const auto bytes = in.take(n * sizeof(T), what);
  if (n > 0) std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

SavedHead read_head(ByteReader& in, std::string_view name, std::int32_t n_computed) {
  SavedHead head;
  head.stored = read_list<TokenRange>(in, name, "ranges of kept tokens");
  std::int32_t end = 0;
  std::size_t n = 0;
  for (const TokenRange& r : head.stored) {
    if (r.begin < end || r.begin >= r.end || r.end > n_computed)
      damaged(name, fmt::format("kept tokens [{}, {}) after {} of {}", r.begin, r.end, end, n_computed));
    end = r.end;
    n += r.end - r.begin;
  }
  head.mass = read_list<float>(in, name, "sums of attention");
  if (!head.mass.empty() && head.mass.size() != n)
    damaged(name, fmt::format("{} sums of attention for {} tokens", head.mass.size(), n));
  return head;
}

void read_method(std::span<const std::byte> bytes, std::string_view name, SessionContent& c) {
  if (bytes.empty()) return;
  ByteReader in(bytes, name);
  c.method.emplace();
  for (std::int32_t layer = 0; layer < c.identity.kv.n_layers; ++layer) {
    const auto budget = in.read<std::int32_t>("budget of a layer");
    if (budget < 0) damaged(name, fmt::format("budget of a layer: {}", budget));
    c.method->budgets.push_back(budget);
    for (std::int32_t h = 0; h < c.identity.kv.n_kv_heads; ++h)
      c.method->heads.push_back(read_head(in, name, c.n_computed));
  }
  expect_end(in, name, kSectionNames[Layout::kMethod]);
}

// What the state says only its method can tell.
void read_reading(std::span<const std::byte> bytes, std::string_view name, SessionContent& c) {
  if (bytes.empty()) return;
  ByteReader in(bytes, name);
  c.reading.emplace();
  c.reading->recipe = in.string("recipe");
  const auto state = in.take(in.remaining(), "state of a method");
  c.reading->state.assign(state.begin(), state.end());
}

// 2^16 layers, heads and values of 4 bytes, and 2^31 tokens are more than 64 bits hold.
void check_kv(std::span<const std::byte> bytes, std::string_view name, const SessionContent& c) {
  const KvShape& kv = c.identity.kv;
  if (c.method) {
    unsigned __int128 all = 0;
    for (const SavedHead& head : c.method->heads)
      for (const TokenRange& r : head.stored) all += static_cast<unsigned>(r.end - r.begin);
    if (all * kv.token_bytes() != bytes.size())
      damaged(name, fmt::format("keys and values of {} tokens of heads, {} bytes each, in {} bytes",
                                static_cast<std::uint64_t>(all), kv.token_bytes(), bytes.size()));
    return;
  }
  const auto wanted = static_cast<unsigned __int128>(kv.bytes_per_token()) * static_cast<unsigned>(c.n_computed);
  if (wanted != bytes.size())
    damaged(name, fmt::format("keys and values of {} tokens, {} bytes each, in {} bytes", c.n_computed,
                              kv.bytes_per_token(), bytes.size()));
}

}  // namespace

std::int32_t SessionContent::n_stored(std::int32_t layer, std::int32_t kv_head) const {
  if (!method) return n_computed;
  std::int32_t n = 0;
  for (const TokenRange& r : method->heads[layer * identity.kv.n_kv_heads + kv_head].stored) n += r.end - r.begin;
  return n;
}

std::uint64_t session_checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

SessionFile SessionFile::parse(std::span<const std::byte> bytes, std::string_view name, Check check) {
  const Sections sections = read_sections(bytes, name, check);
  SessionFile file;
  SessionContent& c = file.content_;
  c.identity = read_model(sections[Layout::kModel], name);
  const std::int64_t n_tokens = read_state(sections[Layout::kState], name, c);
  read_document(sections[Layout::kDocument], name, c);
  read_tokens(sections[Layout::kTokens], name, n_tokens, c);
  read_method(sections[Layout::kMethod], name, c);
  read_reading(sections[Layout::kReading], name, c);
  check_kv(sections[Layout::kKv], name, c);
  file.kv_ = sections[Layout::kKv];
  if (!c.method) return file;
  const KvShape& kv = c.identity.kv;
  std::size_t at = 0;
  for (std::int32_t layer = 0; layer < kv.n_layers; ++layer)
    for (std::int32_t h = 0; h < kv.n_kv_heads; ++h) {
      file.first_.push_back(at);
      at += c.n_stored(layer, h) * kv.token_bytes();
    }
  return file;
}

std::span<const std::byte> SessionFile::kv(std::int32_t layer, std::int32_t kv_head) const {
  const KvShape& shape = content_.identity.kv;
  MNEME_CHECK(layer >= 0 && layer < shape.n_layers && kv_head >= 0 && kv_head < shape.n_kv_heads, "layer {}, head {}",
              layer, kv_head);
  const std::size_t bytes = shape.token_bytes() * content_.n_stored(layer, kv_head);
  const auto index = std::int64_t{layer} * shape.n_kv_heads + kv_head;
  return kv_.subspan(first_.empty() ? index * bytes : first_[index], bytes);
}

void expect_same_model(const SessionIdentity& saved, const SessionIdentity& running, std::string_view file) {
  const auto expect = [&](bool same, std::string_view what, const auto& theirs, const auto& ours) {
    if (same) return;
    fail(ErrorKind::kRequest, "{}: saved with {}, {} {}; this model{} has {}", file,
         saved.name.empty() ? "another model" : "model \"" + saved.name + "\"", what, theirs,
         running.name.empty() ? "" : " (\"" + running.name + "\")", ours);
  };
  const auto same = [&](const auto& theirs, const auto& ours, std::string_view what) {
    expect(theirs == ours, what, theirs, ours);
  };
  same(saved.architecture, running.architecture, "architecture");
  same(saved.vocab, running.vocab, "vocabulary");
  same(saved.kv.n_layers, running.kv.n_layers, "layers");
  same(saved.kv.n_kv_heads, running.kv.n_kv_heads, "KV heads");
  same(saved.kv.head_dim, running.kv.head_dim, "head size");
  expect(saved.weights == running.weights, "weights", fmt::format("{:016x}", saved.weights),
         fmt::format("{:016x}", running.weights));
  expect(saved.tokenizer == running.tokenizer, "tokenizer", fmt::format("{:016x}", saved.tokenizer),
         fmt::format("{:016x}", running.tokenizer));
  expect(saved.rope == running.rope, "position embedding", fmt::format("{:016x}", saved.rope),
         fmt::format("{:016x} (with dynamic scaling it depends on the context: start the model with the same one)",
                     running.rope));
  expect(saved.kv.dtype == running.kv.dtype, "keys and values in", dtype_name(saved.kv.dtype),
         fmt::format("{} (kv_cache_dtype)", dtype_name(running.kv.dtype)));
}

}  // namespace mneme
