#include "src/text/answer_grammar/call_steps.h"

#include <algorithm>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/text/answer_grammar/member_steps.h"
#include "src/text/grammar/json_notation.h"

namespace mneme {
namespace {

// The arguments as the format writes them: an object, whatever else the schema allows.
JsonGrammar arguments_of(const CallRule& tool, const AnswerFormat& format) {
  JsonGrammar grammar = tool.arguments;
  JsonNode root;
  for (const NodeId id : kinds_of(grammar, grammar.root))
    if (grammar.nodes[id].kind == JsonNode::Kind::kObject) root.alternatives.push_back(id);
  if (root.alternatives.empty()) fail(ErrorKind::kUnsupported, "the arguments are no object");
  grammar.root = static_cast<NodeId>(grammar.nodes.size());
  grammar.nodes.push_back(std::move(root));
  if (format.calls == CallForm::kNotation) return with_bare_keys(std::move(grammar), format.quote);
  if (format.calls == CallForm::kPython) return as_arguments(std::move(grammar));
  return grammar;
}

// As the inside of a JSON string.
std::string escaped(const std::string& name) {
  const std::string json = nlohmann::json(name).dump();
  return json.substr(1, json.size() - 2);
}

}  // namespace

CallSteps::CallSteps(StepBuilder& steps, const AnswerRules& rules, StepId next)
    : steps_(steps), rules_(rules), next_(next) {
  for (const CallRule& tool : rules.tools) {
    try {
      if (format().calls == CallForm::kPython && !(is_letter(tool.name[0]) || tool.name[0] == '_'))
        fail(ErrorKind::kUnsupported, "this model's calls need a name that begins with a letter");
      tools_.push_back({&tool, std::make_shared<const JsonMatcher>(
                                   std::make_shared<const JsonGrammar>(arguments_of(tool, format())))});
    } catch (const Error& e) {
      fail(e.kind(), "the tool \"{}\": {}", tool.name.substr(0, 80), e.what());
    }
  }
}

StepId CallSteps::close_section() {
  const std::string& close = format().call.section_close;
  return close.empty() ? next_ : steps_.white(steps_.mark(close, next_));
}

StepId CallSteps::begin() {
  if (begin_ >= 0) return begin_;
  const CallMarks& marks = format().call;
  std::vector<StepId> ways;
  if (!marks.section_open.empty()) {
    ways.push_back(steps_.mark(marks.section_open, section()));
  } else if (!marks.open.empty()) {
    ways.push_back(steps_.mark(marks.open, call()));
  }
  if (format().bare_calls)
    ways.push_back(format().calls == CallForm::kPython ? functions(next_) : objects(next_, false));
  return begin_ = steps_.split(std::move(ways));
}

StepId CallSteps::section() {
  if (section_ < 0) section_ = steps_.white(make_section());
  return section_;
}

StepId CallSteps::call() {
  if (call_ < 0) call_ = make_call(next_);
  return call_;
}

StepId CallSteps::make_section() {
  if (format().calls == CallForm::kObject) return objects(close_section(), true);
  if (format().calls == CallForm::kPython) return functions(close_section());
  const std::string& open = format().call.open;
  if (open.empty()) return make_call(close_section());
  const StepId begin = steps_.split({0, 0});  // filled in below
  const StepId close = steps_.mark(format().call.section_close, next_);
  const StepId behind = rules_.parallel ? steps_.split({begin, close}) : close;
  steps_.at(begin).ways = {steps_.mark(open, make_call(steps_.white(behind)))};
  return begin;
}

// ---- objects

StepId CallSteps::objects(StepId next, bool lists) {
  // Outside of a list ";" separates calls where no mark closes a section.
  StepId behind = next;
  const StepId again = steps_.split({0, 0});
  if (rules_.parallel && format().call.section_close.empty())
    behind = steps_.split({next, steps_.white(steps_.text(";", steps_.white(again)))});
  steps_.at(again).ways = {object(behind)};
  if (!lists) return again;
  const StepId item = steps_.split({0, 0});
  steps_.at(item).ways = {object(behind_object(item, next))};
  return steps_.split({again, steps_.text("[", steps_.white(item))});
}

StepId CallSteps::behind_object(StepId again, StepId next) {
  std::vector<StepId> ways{steps_.text("]", next)};
  if (rules_.parallel) ways.push_back(steps_.text(",", steps_.white(again)));
  return steps_.white(steps_.split(std::move(ways)));
}

StepId CallSteps::object(StepId next) {
  const CallKeys& keys = format().keys;
  std::vector<StepId> names;
  for (const Tool& tool : tools_)
    names.push_back(steps_.text(escaped(tool.rule->name) + '"', object_behind_name(tool, next)));
  const StepId name = steps_.text("\"", steps_.split(std::move(names)));
  if (keys.key_is_name) return steps_.text("{", steps_.white(name));
  const auto member = [&](const std::string& key, StepId value) {
    return steps_.text('"' + escaped(key) + '"', steps_.white(steps_.text(":", steps_.white(value))));
  };
  const StepId named = member(keys.name.front(), name);
  const StepId then = steps_.white(steps_.text(",", steps_.white(named)));
  std::vector<StepId> ways{named};
  if (format().bare_calls) ways.push_back(member("type", steps_.text("\"function\"", then)));
  // Cohere's ids come first; Mistral's last.
  if (!keys.id.empty() && keys.id.front() != "id")
    ways.push_back(member(keys.id.front(), steps_.text("\"", steps_.word(1, 40, "", steps_.text("\"", then)))));
  return steps_.text("{", steps_.white(steps_.split(std::move(ways))));
}

StepId CallSteps::object_behind_name(const Tool& tool, StepId next) {
  const CallKeys& keys = format().keys;
  const StepId close = steps_.text("}", next);
  std::vector<StepId> behind{close};
  if (format().short_ids)
    behind.push_back(steps_.text(
        ",", steps_.white(steps_.text(
                 "\"id\"", steps_.white(steps_.text(
                               ":", steps_.white(steps_.text(
                                        "\"", steps_.word(9, 9, "", steps_.text("\"", steps_.white(close)))))))))));
  const StepId value =
      steps_.json(tool.arguments, tool.arguments->grammar().root, steps_.white(steps_.split(std::move(behind))));
  if (keys.key_is_name) return steps_.white(steps_.text(":", value));
  std::vector<StepId> ways;
  for (const std::string& key : keys.arguments)
    ways.push_back(steps_.text('"' + escaped(key) + '"', steps_.white(steps_.text(":", value))));
  return steps_.white(steps_.text(",", steps_.white(steps_.split(std::move(ways)))));
}

// ---- Python's

StepId CallSteps::functions(StepId next) {
  const StepId again = steps_.split({0, 0});
  std::vector<StepId> names;
  const StepId behind = behind_object(again, next);
  for (const Tool& tool : tools_)
    names.push_back(steps_.text(tool.rule->name, steps_.json(tool.arguments, tool.arguments->grammar().root, behind)));
  steps_.at(again).ways = std::move(names);
  return steps_.text("[", steps_.white(again));
}

// ---- a name, then its arguments

StepId CallSteps::make_call(StepId next) {
  const CallMarks& marks = format().call;
  std::vector<StepId> names;
  for (const Tool& tool : tools_) {
    const std::string& name = tool.rule->name;
    StepId behind = behind_name(tool, next);
    if (format().id_holds_name) {
      behind = steps_.word(1, 6, "", behind);
      steps_.at(behind).digits = true;
      names.push_back(steps_.text("functions." + name + ":", behind));
    } else {
      names.push_back(steps_.text(name, behind));
    }
  }
  const StepId name = steps_.split(std::move(names));
  return marks.id_end.empty() ? name : steps_.word(1, 40, "", steps_.mark(marks.id_end, name));
}

StepId CallSteps::behind_name(const Tool& tool, StepId next) {
  const CallMarks& marks = format().call;
  const StepId close = marks.close.empty() ? next : steps_.mark(marks.close, next);
  const NodeId root = tool.arguments->grammar().root;
  if (format().calls == CallForm::kTagged) {
    StepId arguments = steps_.white(member_steps(steps_, format().argument, tool.rule->types, *tool.arguments, close));
    if (!marks.name_tail.empty()) arguments = steps_.word(0, 40, " =\"", steps_.mark(marks.name_tail, arguments));
    return steps_.mark(marks.name_end, arguments);
  }
  const StepId arguments = steps_.json(tool.arguments, root, marks.close.empty() ? next : steps_.white(close));
  if (format().calls == CallForm::kNotation) return arguments;
  const StepId named = steps_.white(steps_.mark(marks.name_end, arguments));
  if (marks.id_open.empty()) return named;
  return steps_.split({named, steps_.mark(marks.id_open, steps_.word(1, 40, "", named))});
}

// ---- without marks

std::vector<CallSteps::Bare> CallSteps::bare() {
  std::vector<Bare> all;
  if (!format().bare_calls) return all;
  const bool python = format().calls == CallForm::kPython;
  const StepId again = steps_.split({0, 0});
  std::vector<StepId> names;
  StepId behind = next_;
  if (python) {
    behind = behind_object(again, next_);
  } else if (rules_.parallel && format().call.section_close.empty()) {
    behind = steps_.split({next_, steps_.white(steps_.text(";", steps_.white(again)))});
  }
  for (const Tool& tool : tools_) {
    const std::string& name = tool.rule->name;
    const NodeId root = tool.arguments->grammar().root;
    if (python) {
      const StepId arguments = steps_.json(tool.arguments, root, behind);
      names.push_back(steps_.text(name, arguments));
      const StepId open = steps_.json(tool.arguments, root, behind);
      steps_.at(open).text = "(";  // which the mark has
      all.push_back({"[ " + name + '(', open});
    } else {
      const StepId tail = object_behind_name(tool, behind);
      const std::string key = '"' + escaped(format().keys.name.front()) + "\" : \"" + escaped(name) + '"';
      all.push_back({"{ " + key, tail});
      all.push_back({"{ \"type\" : \"function\" , " + key, tail});
    }
  }
  steps_.at(again).ways = python ? std::move(names) : std::vector<StepId>{object(behind)};
  return all;
}

}  // namespace mneme
