#include "src/text/answer/answer_parser.h"

#include <algorithm>

#include "src/text/answer/harmony_parser.h"
#include "src/text/answer/marked_parser.h"

namespace mneme {
namespace {

using ToolJson = nlohmann::ordered_json;

const ToolJson* member(const ToolJson& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto it = json.find(key);
  return it == json.end() ? nullptr : &*it;
}

bool is_text(const ToolJson* json) {
  return json != nullptr && json->is_string();
}

// What a $ref within `root` leads to; null: nothing.
const ToolJson* target_of(const ToolJson& ref, const ToolJson& root) {
  if (!ref.is_string() || !ref.get_ref<const std::string&>().starts_with("#")) return nullptr;
  try {
    const ToolJson::json_pointer pointer(ref.get_ref<const std::string&>().substr(1));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const ToolJson::exception&) {
    return nullptr;
  }
}

constexpr int kMaxReferences = 16;

// The schema that a chain of $ref and allOf of one leads to.
const ToolJson& followed(const ToolJson& schema, const ToolJson& root) {
  const ToolJson* at = &schema;
  for (int i = 0; i < kMaxReferences; ++i) {
    const ToolJson *const ref = member(*at, "$ref"), *const all = member(*at, "allOf");
    const ToolJson* next = nullptr;
    if (ref != nullptr) next = target_of(*ref, root);
    if (ref == nullptr && all != nullptr && all->is_array() && all->size() == 1) next = &all->front();
    if (next == nullptr) break;
    at = next;
  }
  return *at;
}

ArgumentType type_of(const ToolJson& said, const ToolJson& root) {
  const ToolJson& schema = followed(said, root);
  for (const char* key : {"anyOf", "oneOf"}) {
    const ToolJson* const list = member(schema, key);
    if (list == nullptr || !list->is_array() || list->empty()) continue;
    const bool others = std::all_of(list->begin(), list->end(), [&](const ToolJson& one) {
      const ToolJson* const type = member(followed(one, root), "type");
      return is_text(type) && *type != "string";
    });
    return others ? ArgumentType::kOther : ArgumentType::kAny;
  }
  const ToolJson* type = member(schema, "type");
  if (type != nullptr && type->is_array())
    for (const ToolJson& one : *type)
      if (one.is_string() && one != "null") return one == "string" ? ArgumentType::kString : ArgumentType::kOther;
  if (is_text(type)) return *type == "string" ? ArgumentType::kString : ArgumentType::kOther;
  const ToolJson* const values = member(schema, "enum");
  if (values != nullptr && values->is_array() && !values->empty() &&
      std::all_of(values->begin(), values->end(), [](const ToolJson& v) { return v.is_string(); }))
    return ArgumentType::kString;
  return is_text(member(schema, "const")) ? ArgumentType::kString : ArgumentType::kAny;
}

// The mark as it is read: without white space at its ends, special tokens of the vocabulary between bytes.
void resolve(std::string& mark, const std::vector<std::string>& tokens) {
  mark = std::string(trimmed(mark));
  std::string out;
  for (std::size_t at = 0; at < mark.size();) {
    std::size_t longest = 0;
    for (const std::string& token : tokens)
      if (token.size() > longest && std::string_view(mark).substr(at).starts_with(token)) longest = token.size();
    if (longest == 0) {
      out += mark[at++];
      continue;
    }
    out += kTokenBegin;
    out.append(mark, at, longest);
    out += kTokenEnd;
    at += longest;
  }
  mark = std::move(out);
}

template <typename Visit>
void for_each_mark(AnswerFormat& f, const Visit& visit) {
  for (std::string* mark :
       {&f.thought_open, &f.thought_close, &f.call.section_open, &f.call.section_close, &f.call.open, &f.call.close,
        &f.call.id_open, &f.call.id_end, &f.call.name_end, &f.call.name_tail, &f.argument.key_open, &f.argument.key_end,
        &f.argument.value_open, &f.argument.value_end, &f.quote})
    visit(*mark);
  for (std::string& mark : f.framing) visit(mark);
}

}  // namespace

AnswerTools answer_tools_of(const ToolJson& tools) {
  AnswerTools out;
  if (!tools.is_array()) return out;
  for (const ToolJson& tool : tools) {
    const ToolJson* const function = member(tool, "function");
    const ToolJson* const name = function == nullptr ? nullptr : member(*function, "name");
    if (!is_text(name)) continue;
    ArgumentTypes& types = out[name->get<std::string>()];
    const ToolJson* const parameters = member(*function, "parameters");
    const ToolJson* const properties =
        parameters == nullptr ? nullptr : member(followed(*parameters, *parameters), "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) types[key] = type_of(schema, *parameters);
  }
  return out;
}

// ---- marks

AnswerMarks::AnswerMarks(AnswerFormat format) : shown_(format), format_(std::move(format)) {
  for_each_mark(format_, [](std::string& mark) { resolve(mark, {}); });
}

AnswerMarks::AnswerMarks(AnswerFormat format, const Tokenizer& tokenizer) : shown_(format), format_(std::move(format)) {
  std::string all;
  for_each_mark(format_, [&all](const std::string& mark) { all += mark + '\n'; });
  if (format_.calls == CallForm::kHarmony) all += HarmonyParser::kTokens;
  std::vector<std::string> spellings;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_control(id)) continue;
    std::string spelling = tokenizer.token_bytes(id, true);
    if (spelling.empty() || all.find(spelling) == std::string::npos) continue;
    tokens_[id] = kTokenBegin + spelling + kTokenEnd;
    spellings.push_back(std::move(spelling));
  }
  for_each_mark(format_, [&spellings](std::string& mark) { resolve(mark, spellings); });
}

std::string_view AnswerMarks::bytes_of(TokenId special) const {
  const auto it = tokens_.find(special);
  return it == tokens_.end() ? std::string_view() : std::string_view(it->second);
}

std::string AnswerMarks::mark_of(std::string_view spelling) const {
  const std::string token = kTokenBegin + std::string(spelling) + kTokenEnd;
  const bool special = std::any_of(tokens_.begin(), tokens_.end(), [&](const auto& t) { return t.second == token; });
  return special ? token : std::string(spelling);
}

bool AnswerMarks::opens_thought(std::span<const TokenId> prompt, const Tokenizer& tokenizer) const {
  if (format_.thought_open.empty()) return false;
  constexpr std::size_t kTail = 32;
  const auto tail = prompt.subspan(prompt.size() - std::min(prompt.size(), kTail));
  std::string text;
  for (const TokenId id : tail)
    text += tokenizer.is_control(id) ? std::string(bytes_of(id)) : tokenizer.token_bytes(id);
  return trimmed(text).ends_with(format_.thought_open);
}

// ---- parser

std::unique_ptr<AnswerParser> AnswerParser::make(const AnswerMarks& marks, const Setting& setting) {
  if (marks.format().calls == CallForm::kHarmony) return std::make_unique<HarmonyParser>(marks, setting);
  return std::make_unique<MarkedParser>(marks.format(), setting);
}

void AnswerParser::run(bool last) {
  while (at_ < bytes_.size() && advance(last)) {
  }
  bytes_.erase(0, at_);
  at_ = 0;
}

void AnswerParser::push(std::string_view bytes, std::vector<AnswerEvent>& events) {
  events_ = &events;
  bytes_ += bytes;
  run(false);
}

void AnswerParser::finish(std::vector<AnswerEvent>& events) {
  events_ = &events;
  run(true);
  end();
}

AnswerEvent& AnswerParser::add(AnswerPart part) {
  const bool joins = part == AnswerPart::kThought || part == AnswerPart::kText || part == AnswerPart::kArguments;
  if (events_->empty() || !joins || events_->back().part != part) events_->push_back({.part = part});
  events_->back().call = std::max(calls_ - 1, 0);
  events_->back().end = read_;
  return events_->back();
}

void AnswerParser::emit(AnswerPart part, std::string_view text) {
  if (!text.empty()) append_spelled(text, add(part).text);
}

void AnswerParser::begin_call(std::string name, std::string id) {
  ++calls_;
  has_arguments_ = false;
  AnswerEvent& event = add(AnswerPart::kCallBegin);
  event.text = std::move(name);
  event.id = std::move(id);
}

void AnswerParser::add_arguments(std::string_view json) {
  if (json.empty()) return;
  has_arguments_ = true;
  append_spelled(json, add(AnswerPart::kArguments).text);
}

void AnswerParser::end_call() {
  if (!has_arguments_) add_arguments("{}");
  add(AnswerPart::kCallEnd);
}

}  // namespace mneme
