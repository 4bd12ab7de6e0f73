#include "src/text/answer_grammar/member_steps.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/text/answer/mark.h"
#include "src/text/grammar/json_notation.h"

namespace mneme {
namespace {

// What a reader takes for another value than the text itself.
bool reads_as_value(std::string_view text) {
  const std::string_view bare = trimmed(text);
  const bool python = bare == "True" || bare == "False" || bare == "None";
  return python || (!bare.starts_with('"') && nlohmann::json::accept(bare));
}

class MemberSteps {
 public:
  MemberSteps(StepBuilder& steps, const ArgumentMarks& marks, const ArgumentTypes& types, const JsonMatcher& arguments)
      : steps_(steps), marks_(marks), types_(types), grammar_(arguments.grammar()) {}

  StepId run(StepId next) {
    std::vector<std::pair<StepId, NodeId>> members;
    for (const NodeId object : kinds_of(grammar_, grammar_.root)) {
      const StepId all = steps_.add({.kind = AnswerStep::Kind::kMembers, .next = next, .node = object});
      members.emplace_back(all, object);
      add_members(all, grammar_.nodes[object]);
    }
    // The grammar has the nodes of all values now.
    const auto matcher = std::make_shared<const JsonMatcher>(std::make_shared<const JsonGrammar>(std::move(grammar_)));
    for (const StepId value : values_) steps_.at(value).json = matcher;
    std::vector<StepId> ways;
    for (const auto& [all, object] : members) {
      steps_.at(all).json = matcher;
      ways.push_back(all);
    }
    return steps_.split(std::move(ways));
  }

 private:
  void add_members(StepId all, const JsonNode& declared) {
    const JsonNode object = declared;  // nodes are added below
    const StepId again = steps_.white(all);
    std::vector<std::string> names(object.properties.size());
    for (const std::string& name : object.names.texts()) names[index_of(object.names, name)] = name;
    std::vector<StepId> ways;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto known = types_.find(names[i]);
      const ArgumentType type = known == types_.end() ? ArgumentType::kAny : known->second;
      const StepId value = may_be_key(names[i]) ? values(names[i], object.properties[i], type, again) : -1;
      if (value < 0 && (object.required >> i & 1) != 0)
        fail(ErrorKind::kUnsupported, "the required property \"{}\" cannot be written in this model's calls",
             names[i].substr(0, 80));
      ways.push_back(value < 0 ? -1 : steps_.mark(marks_.key_open, steps_.text(names[i], value)));
    }
    steps_.at(all).ways = std::move(ways);
    const bool any_key = marks_.value_end.find("{key}") == std::string::npos;
    if (object.additional == kNoNode || !any_key) return;
    const StepId value = values("", object.additional, ArgumentType::kAny, again);
    if (value < 0) return;
    const StepId key = steps_.word(1, 64, ".", value);
    steps_.at(key).except = std::make_shared<const ByteTree>(object.names);
    steps_.at(all).other = steps_.mark(marks_.key_open, key);
  }

  static std::int32_t index_of(const ByteTree& names, std::string_view name) {
    std::int32_t at = 0;
    for (const char c : name) at = names.child(at, static_cast<std::uint8_t>(c));
    return names.node(at).text;
  }

  bool may_be_key(std::string_view name) const {
    return !name.empty() && name.size() <= kLongestBareName && name.find(marks_.key_end) == std::string_view::npos &&
           std::none_of(name.begin(), name.end(), [](char c) {
             return static_cast<unsigned char>(c) <= 0x20 || c == '<' || c == '>' || c == '"';
           });
  }

  // From behind the key to behind the value; -1: no value of the node can be written.
  StepId values(const std::string& key, NodeId node, ArgumentType type, StepId next) {
    std::string end = marks_.value_end;
    if (const std::size_t at = end.find("{key}"); at != std::string::npos) end.replace(at, 5, key);
    const bool said = !marks_.attribute.empty();
    std::vector<StepId> texts, others;
    if (type == ArgumentType::kOther && !said) {
      others.push_back(json(node, end, next));
    } else {
      const bool reads_as_text = type == ArgumentType::kAny && !said;
      for (const NodeId kind : kinds_of(grammar_, node)) {
        const JsonNode of_kind = grammar_.nodes[kind];
        if (of_kind.kind == JsonNode::Kind::kLiteral) {
          add_literals(of_kind.literals, reads_as_text, type == ArgumentType::kString && !said, end, next, texts,
                       others);
        } else if (of_kind.kind == JsonNode::Kind::kString) {
          texts.push_back(text(of_kind, reads_as_text, end, next));
        } else if (type != ArgumentType::kString || said) {
          others.push_back(json(kind, end, next));
        }
      }
    }
    return behind_key(std::move(texts), std::move(others));
  }

  StepId behind_key(std::vector<StepId> texts, std::vector<StepId> others) {
    std::vector<StepId> ways;
    if (marks_.attribute.empty()) {
      texts.insert(texts.end(), others.begin(), others.end());
      if (texts.empty()) return -1;
      StepId value = steps_.split(std::move(texts));
      if (!marks_.value_open.empty()) value = steps_.white(steps_.mark(marks_.value_open, value));
      return steps_.mark(marks_.key_end, value);
    }
    const auto said = [&](std::vector<StepId> values, bool string) {
      if (values.empty()) return;
      StepId value = steps_.mark(marks_.value_open, steps_.split(std::move(values)));
      const bool named = marks_.attribute == "type";
      if (named) {
        value = string ? steps_.text("string\"", value) : type_names(steps_.text("\"", value));
      } else {
        value = steps_.text(string ? "true\"" : "false\"", value);
      }
      ways.push_back(steps_.text(' ' + marks_.attribute + "=\"", value));
    };
    said(std::move(texts), true);
    said(std::move(others), false);
    return ways.empty() ? -1 : steps_.mark(marks_.key_end, steps_.split(std::move(ways)));
  }

  StepId type_names(StepId next) {
    std::vector<StepId> names;
    for (const char* name : {"number", "integer", "boolean", "object", "array", "null"})
      names.push_back(steps_.text(name, next));
    return steps_.split(std::move(names));
  }

  StepId value(NodeId node, StepId next) {
    values_.push_back(steps_.json(nullptr, node, next));
    return values_.back();
  }

  StepId json(NodeId node, const std::string& end, StepId next) {
    return value(node, steps_.white(steps_.mark(end, next)));
  }

  NodeId add_node(JsonNode node) {
    grammar_.nodes.push_back(std::move(node));
    return static_cast<NodeId>(grammar_.nodes.size() - 1);
  }

  StepId text(JsonNode string, bool reads_as_text, const std::string& end, StepId next) {
    const std::string line = marks_.lines ? "\n" : "";
    string.raw = std::make_shared<const RawText>(
        RawText{.open = line, .close = line + end, .never = end, .reads_as_text = reads_as_text});
    return value(add_node(std::move(string)), next);
  }

  // `texts_alone`: the parser takes whatever is written for a string.
  void add_literals(const ByteTree& literals, bool reads_as_text, bool texts_alone, const std::string& end, StepId next,
                    std::vector<StepId>& texts, std::vector<StepId>& others) {
    JsonNode strings, rest;
    strings.kind = rest.kind = JsonNode::Kind::kLiteral;
    strings.raw = std::make_shared<const RawText>();
    std::int32_t n_strings = 0, n_rest = 0;
    for (const std::string& literal : literals.texts()) {
      if (!literal.starts_with('"')) {
        rest.literals.add(literal, n_rest++);
        continue;
      }
      const std::string written = nlohmann::json::parse(literal).get<std::string>();
      if (written.empty() || written.find(end) != std::string::npos || (reads_as_text && reads_as_value(written)))
        continue;
      strings.literals.add(written, n_strings++);
    }
    const std::string line = marks_.lines ? "\n" : "";
    if (n_strings > 0)
      texts.push_back(steps_.text(line, value(add_node(std::move(strings)), steps_.text(line + end, next))));
    if (n_rest > 0 && !texts_alone) others.push_back(json(add_node(std::move(rest)), end, next));
  }

  StepBuilder& steps_;
  const ArgumentMarks& marks_;
  const ArgumentTypes& types_;
  JsonGrammar grammar_;
  std::vector<StepId> values_;
};

}  // namespace

StepId member_steps(StepBuilder& steps, const ArgumentMarks& marks, const ArgumentTypes& types,
                    const JsonMatcher& arguments, StepId next) {
  return MemberSteps(steps, marks, types, arguments).run(next);
}

}  // namespace mneme
