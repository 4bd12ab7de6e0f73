#include "src/server/api/chat_prompt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/server/api/api_error.h"

namespace mneme::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_system(const ChatMessage& m) {
  return m.role == "system" || m.role == "developer";
}

std::string parse_part(const JsonRef& part) {
  const std::string& type = part.at("type").string();
  if (type == "refusal") return part.at("refusal").string();
  if (type != "text") part.at("type").wrong("\"text\": the models here read nothing else");
  return part.at("text").string();
}

std::string parse_content(const JsonRef& content) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) content.wrong("a string, or an array of parts");
  std::string text;
  bool first = true;
  for (const JsonRef& part : content.elements()) {
    if (!std::exchange(first, false)) text += '\n';
    text += parse_part(part);
  }
  return text;
}

// Templates write arguments as JSON. Clients send them as the model wrote them: what is no JSON object stays text.
OrderedJson arguments_of(std::string_view written) {
  if (written.find_first_not_of(" \t\r\n") == std::string_view::npos) return OrderedJson::object();
  OrderedJson read = OrderedJson::parse(written, nullptr, false);
  return read.is_object() ? read : OrderedJson(written);
}

// `function`: {"name", "arguments"}; in `in_order` arguments become what arguments_of() makes of them.
void read_call(const JsonRef& function, OrderedJson& in_order) {
  function.at("name").string();
  const auto arguments = function.find("arguments");
  if (!arguments) {
    in_order["arguments"] = OrderedJson::object();
  } else if (arguments->is_string()) {
    in_order["arguments"] = arguments_of(arguments->string());
  } else if (!arguments->is_object()) {
    arguments->wrong("a JSON object, or text");
  }
}

OrderedJson parse_tool_calls(const JsonRef& calls, OrderedJson in_order) {
  if (!calls.is_array()) calls.wrong("an array of calls");
  std::size_t i = 0;
  for (const JsonRef& call : calls.elements()) {
    OrderedJson& out = in_order[i++];
    if (call.string("type", "function") == "custom") {
      // A tool whose input is plain text.
      out["function"] = {{"name", call.at("custom").at("name").string()},
                         {"arguments", call.at("custom").at("input").string()}};
    } else {
      read_call(call.at("function"), out["function"]);
    }
  }
  return in_order;
}

// Templates read a message's reasoning as reasoning_content or as thinking, whichever their family names it.
void name_reasoning(const JsonRef& message, OrderedJson& more) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    const auto given = message.find(key);
    if (!given) continue;
    const std::string& reasoning = given->string();
    for (const char* name : {"reasoning_content", "thinking"})
      if (!more.contains(name)) more[name] = reasoning;
  }
}

bool is_more(const std::string& key, bool null) {
  return key != "role" && key != "content" && !null;
}

// What a template may ask of a message beside role and content: all of it that is not null.
OrderedJson parse_more(const JsonRef& message, const OrderedJson& in_order) {
  OrderedJson more = OrderedJson::object();
  if (!in_order.is_object()) return more;
  if (const auto audio = message.find("audio")) audio->wrong("null: the models here read text alone");
  for (const char* key : {"name", "tool_call_id", "refusal"})
    if (const auto text = message.find(key)) text->string();
  for (const auto& [key, value] : in_order.items())
    if (is_more(key, value.is_null())) more[key] = value;
  name_reasoning(message, more);
  const auto calls = message.find("tool_calls");
  if (calls) more["tool_calls"] = parse_tool_calls(*calls, in_order["tool_calls"]);
  // The older form of one call.
  if (const auto call = message.find("function_call")) {
    OrderedJson function = in_order["function_call"];
    read_call(*call, function);
    more.erase("function_call");
    if (!calls) more["tool_calls"] = {{{"type", "function"}, {"function", std::move(function)}}};
  }
  if (more.contains("tool_calls") && more["tool_calls"].empty()) more.erase("tool_calls");
  return more;
}

ChatMessage parse_message(const JsonRef& m, const OrderedJson& in_order) {
  ChatMessage message{.role = m.at("role").string(), .content = {}};
  message.more = parse_more(m, in_order);
  const bool may_be_silent = message.role == "assistant" || message.role == "tool" || message.role == "function" ||
                             message.more.contains("tool_calls");
  if (m.find("content") || !may_be_silent) {
    message.content = parse_content(m.at("content"));
  } else if (const auto refusal = m.find("refusal")) {
    message.content = refusal->string();
  }
  return message;
}

bool has_more_than_text(const JsonRef& message) {
  if (!message.is_object()) return false;
  for (const auto& [key, value] : message.value().items())
    if (is_more(key, value.is_null())) return true;
  return false;
}

// Formats write names without quotes or escapes.
bool is_tool_name(std::string_view name) {
  constexpr std::size_t kLongest = 128;
  return !name.empty() && name.size() <= kLongest && std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter_or_digit(c) || c == '_' || c == '-' || c == '.' || c == ':';
  });
}

std::vector<std::string> tool_names(const JsonRef& tools) {
  if (!tools.is_array()) tools.wrong("an array of tools");
  std::vector<std::string> names;
  for (const JsonRef& tool : tools.elements()) {
    if (tool.at("type").string() != "function") tool.at("type").wrong("\"function\"");
    const JsonRef name = tool.at("function").at("name");
    if (!is_tool_name(name.string()))
      name.wrong("a name of at most 128 letters, digits, \"_\", \"-\", \".\" and \":\"");
    names.push_back(name.string());
  }
  return names;
}

// Of a tool among `names` that tool_choice names.
std::string chosen_name(const JsonRef& function, const std::vector<std::string>& names) {
  const std::string& name = function.at("name").string();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ApiError(400, fmt::format("tool_choice: no tool is named \"{}\"", name.substr(0, 128)), "tool_choice");
  return name;
}

// {"mode", "tools"}: the tools that may be called; the prompt shows all.
void parse_allowed_tools(const JsonRef& allowed, const std::vector<std::string>& names, ToolChoice& choice) {
  const std::string& mode = allowed.at("mode").string();
  if (mode != "auto" && mode != "required") allowed.at("mode").wrong("\"auto\" or \"required\"");
  choice.required = mode == "required";
  choice.names.clear();
  for (const JsonRef& tool : allowed.at("tools").elements())
    choice.names.push_back(chosen_name(tool.find("function").value_or(tool), names));
  if (choice.names.empty()) allowed.at("tools").wrong("at least one tool");
}

// False: the tools are not to be used.
bool parse_tool_choice(const JsonRef& body, const std::vector<std::string>& names, ToolChoice& out) {
  out.names = names;
  out.parallel = body.boolean("parallel_tool_calls", true);
  const auto choice = body.find("tool_choice");
  if (!choice) return true;
  if (choice->is_string()) {
    const std::string& word = choice->string();
    if (word != "auto" && word != "none" && word != "required")
      choice->wrong("\"auto\", \"none\", \"required\", or a function by name");
    out.required = word == "required";
    if (word == "none") return false;
  } else if (choice->at("type").string() == "allowed_tools") {
    parse_allowed_tools(choice->find("allowed_tools").value_or(*choice), names, out);
  } else if (choice->at("type").string() == "function") {
    out.required = true;
    out.names = {chosen_name(choice->find("function").value_or(*choice), names)};
  } else {
    choice->at("type").wrong("\"function\" or \"allowed_tools\"");
  }
  if (out.required && names.empty())
    throw ApiError(400, "tool_choice: a call is required, and the request has no tools", "tool_choice");
  return true;
}

void parse_tools(const JsonRef& body, const OrderedJson& in_order, Conversation& out) {
  const auto tools = body.find("tools");
  const std::vector<std::string> names = tools ? tool_names(*tools) : std::vector<std::string>();
  if (parse_tool_choice(body, names, out.choice) && !names.empty()) out.tools = in_order["tools"];
}

// What the template is told of thinking. Families name the switch enable_thinking or thinking; chat_template_kwargs
// win over both fields.
void parse_thinking(const JsonRef& body, Conversation& out) {
  out.effort = body.string("reasoning_effort", "");
  constexpr auto kEfforts =
      std::to_array<std::string_view>({"", "none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (std::find(kEfforts.begin(), kEfforts.end(), out.effort) == kEfforts.end())
    body.at("reasoning_effort").wrong("none, minimal, low, medium, high, xhigh or max");
  if (out.arguments.contains("reasoning_effort")) out.effort.clear();
  std::optional<bool> thinks;
  if (!out.effort.empty()) thinks = out.effort != "none";
  if (const auto given = body.find("enable_thinking")) thinks = given->boolean();
  if (!thinks) return;
  for (const char* name : {"enable_thinking", "thinking"})
    if (!out.arguments.contains(name)) out.arguments[name] = *thinks;
}

// Efforts to try, the one that was asked for first: a template may know three of the seven, and refuse the others.
std::vector<std::string> efforts_to_try(const std::string& effort, std::string_view source) {
  std::vector<std::string> efforts;
  const bool named = source.find('\'' + effort + '\'') != std::string_view::npos ||
                     source.find('"' + effort + '"') != std::string_view::npos;
  if (effort != "none" || named) efforts.push_back(effort);
  if (effort == "minimal") efforts.emplace_back("low");
  if (effort == "xhigh" || effort == "max") efforts.emplace_back("high");
  return efforts;
}

// The role that templates know: "function" answers a function_call, as "tool" does one of tool_calls.
std::string_view template_role(std::string_view role) {
  if (role == "developer") return "system";
  return role == "function" ? "tool" : role;
}

enum class Silent { kLeftOut, kEmpty };

// Every message as a template reads it. A message without content has no such member, or an empty one.
ChatInput template_input(const Conversation& conversation, Silent silent) {
  ChatInput input;
  for (const ChatMessage& m : conversation.messages) {
    OrderedJson json{{"role", template_role(m.role)}};
    if (m.content || silent == Silent::kEmpty) json["content"] = m.content.value_or("");
    json.update(m.more);
    input.messages.push_back(std::move(json));
  }
  input.tools = conversation.tools;
  input.arguments = conversation.arguments;
  input.add_generation_prompt = conversation.add_generation_prompt;
  input.continue_final_message = conversation.continue_final_message;
  input.template_name = conversation.template_name;
  return input;
}

std::vector<TokenId> by_template(const ChatFormat& chat, const Conversation& conversation) {
  const bool silent = std::any_of(conversation.messages.begin(), conversation.messages.end(),
                                  [](const ChatMessage& m) { return !m.content; });
  if (!silent) return chat.conversation(template_input(conversation, Silent::kLeftOut));
  try {
    return chat.conversation(template_input(conversation, Silent::kLeftOut));
  } catch (const Error&) {
    // Some templates add content to other text without asking whether there is any.
    return chat.conversation(template_input(conversation, Silent::kEmpty));
  }
}

// Built-in framings can leave only the assistant's turn open.
void check_continues(const Conversation& conversation, bool by_hand) {
  if (!conversation.continue_final_message) return;
  const ChatMessage& last = conversation.messages.back();
  if ((by_hand && last.role != "assistant") || last.content.value_or("").empty()) {
    throw ApiError(400,
                   fmt::format("continue_final_message: expected a last message of the assistant with content, found "
                               "the role \"{}\"{}",
                               last.role, last.content.value_or("").empty() ? " without content" : ""),
                   "continue_final_message");
  }
}

void check_template(const ChatFormat& chat, const Conversation& conversation) {
  if (!conversation.template_name.empty() && !chat.has_template(conversation.template_name)) {
    throw ApiError(400,
                   fmt::format("chat_template: expected the name of one of the model's templates ({}), found \"{}\"; "
                               "the server's --chat-template takes any other",
                               fmt::join(chat.template_names(), ", "), conversation.template_name.substr(0, 60)),
                   "chat_template", "unsupported_parameter");
  }
  const ChatTemplate* const used = chat.template_for(!conversation.tools.is_null(), conversation.template_name);
  if (!conversation.tools.is_null() && (used == nullptr || used->source().find("tools") == std::string::npos)) {
    throw ApiError(400, "tools: the chat template of this model has no place for them", "tools",
                   "unsupported_parameter");
  }
  if (used == nullptr && !conversation.add_generation_prompt && !conversation.continue_final_message) {
    throw ApiError(
        400, "add_generation_prompt: this model's turns are framed without a template, and end where an answer begins",
        "add_generation_prompt", "unsupported_parameter");
  }
}

// Turns of a family that is framed by hand: after system texts the user's and the assistant's, in turns.
std::vector<TokenId> by_hand(const TextSide& text, const Conversation& conversation) {
  const std::vector<ChatMessage>& messages = conversation.messages;
  std::string system;
  std::size_t at = 0;
  for (; at < messages.size() && is_system(messages[at]); ++at) {
    if (!system.empty()) system += "\n\n";
    system += *messages[at].content;
  }
  std::vector<TokenId> tokens;
  const auto append = [&](const std::vector<TokenId>& more) { tokens.insert(tokens.end(), more.begin(), more.end()); };
  const std::size_t begin = at;
  for (; at < messages.size(); ++at) {
    const ChatMessage& m = messages[at];
    const bool wants_user = (at - begin) % 2 == 0, first = at == begin;
    const std::string content = m.content.value_or("");
    if (m.role != (wants_user ? "user" : "assistant")) {
      fail(ErrorKind::kRequest, "messages[{}]: expected a message of the {}, found the role \"{}\"", at,
           wants_user ? "user" : "assistant", m.role);
    }
    if (wants_user) {
      append(text.chat.user_turn({.document = {}, .question = content, .system = first ? system : ""}, first));
    } else {
      append(text.tokenizer->encode(content, {.parse_special = false, .add_bos = false, .continues = true}));
      if (!conversation.continue_final_message || at + 1 < messages.size()) append(text.chat.end_of_answer());
    }
  }
  if (begin == messages.size() || (messages.back().role != "user" && !conversation.continue_final_message)) {
    fail(ErrorKind::kRequest, "messages: expected the user's at the end, found the role \"{}\"", messages.back().role);
  }
  return tokens;
}

}  // namespace

Conversation parse_conversation(const JsonRef& body, std::string_view text) {
  Conversation out;
  const JsonRef list = body.at("messages");
  if (!list.is_array()) list.wrong("an array of messages");
  const std::vector<JsonRef> messages = list.elements();
  const bool ordered = body.find("tools") || body.find("chat_template_kwargs") ||
                       std::any_of(messages.begin(), messages.end(), has_more_than_text);
  const OrderedJson in_order = ordered ? OrderedJson::parse(text) : OrderedJson();
  for (std::size_t i = 0; i < messages.size(); ++i)
    out.messages.push_back(parse_message(messages[i], ordered ? in_order["messages"][i] : in_order));
  parse_tools(body, in_order, out);
  out.continue_final_message = body.boolean("continue_final_message", false);
  out.add_generation_prompt = body.boolean("add_generation_prompt", !out.continue_final_message);
  if (out.continue_final_message && out.add_generation_prompt) {
    throw ApiError(400, "continue_final_message: not together with add_generation_prompt, which begins another message",
                   "continue_final_message");
  }
  out.template_name = body.string("chat_template", "");
  if (const auto arguments = body.find("chat_template_kwargs")) {
    if (!arguments->is_object()) arguments->wrong("an object");
    out.arguments = in_order["chat_template_kwargs"];
  }
  parse_thinking(body, out);
  return out;
}

std::vector<TokenId> chat_prompt(const TextSide& text, const Conversation& conversation) {
  if (conversation.messages.empty())
    fail(ErrorKind::kRequest, "messages is empty: expected at least one message, the user's at the end");
  check_template(text.chat, conversation);
  const bool tools = !conversation.tools.is_null();
  const bool framed_by_hand = text.chat.template_for(tools, conversation.template_name) == nullptr;
  check_continues(conversation, framed_by_hand);
  if (framed_by_hand) return by_hand(text, conversation);
  if (conversation.effort.empty()) return by_template(text.chat, conversation);
  Conversation with_effort = conversation;
  for (const std::string& effort :
       efforts_to_try(conversation.effort, text.chat.template_for(tools, conversation.template_name)->source())) {
    with_effort.arguments["reasoning_effort"] = effort;
    try {
      return by_template(text.chat, with_effort);
    } catch (const Error&) {
      // Another effort may do; where none does, the conversation itself is refused below.
    }
  }
  return by_template(text.chat, conversation);
}

}  // namespace mneme::server
