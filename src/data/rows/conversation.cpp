// Converts the conversations of data sets, which have many forms, to the form that chat templates
// read.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "data/rows/chat_rows.h"
#include "data/rows/row_format.h"

namespace longshore {
namespace {

const std::vector<std::string>& known_roles() {
  static const std::vector<std::string> kRoles = {"system", "developer", "user",   "assistant",
                                                  "tool",   "function",  "ipython"};
  return kRoles;
}

constexpr std::array kTrainingMembers = {"weight", "train", "training", "loss"};

// Some data sets have the assistant's call as a turn of its own; this is its speaker's name.
constexpr const char* kCallSpeaker = "function_call";

// Returns the role of a speaker's alternative name; "" if the name is unknown.
std::string role_of_name(const std::string& name) {
  static const std::array<std::pair<const char*, const char*>, 13> kSpeakers = {
      {{"human", "user"},
       {"prompter", "user"},
       {"gpt", "assistant"},
       {"chatgpt", "assistant"},
       {"bing", "assistant"},
       {"bard", "assistant"},
       {"model", "assistant"},
       {"ai", "assistant"},
       {"bot", "assistant"},
       {kCallSpeaker, "assistant"},
       {"observation", "tool"},
       {"function_response", "tool"},
       {"tool_response", "tool"}}};
  for (const auto& [speaker, role] : kSpeakers) {
    if (name == speaker) return role;
  }
  return {};
}

std::string role_of_speaker(const std::string& from, const std::string& place) {
  if (from == "user" || from == "assistant" || from == "system" || from == "tool") return from;
  std::string role = role_of_name(from);
  if (!role.empty()) return role;
  throw RowProblem(place + ".from: \"" + printable(from, kMaxNameBytes) +
                   "\" is not known; expected human, gpt, system or tool");
}

void check_role(const std::string& role, const std::string& place) {
  const std::vector<std::string>& roles = known_roles();
  if (std::find(roles.begin(), roles.end(), role) != roles.end()) return;
  const std::string nearest = nearest_name(role, roles);
  throw RowProblem(place + ".role: \"" + printable(role, kMaxNameBytes) + "\" is no role" +
                   (nearest.empty() ? "; expected system, user, assistant or tool"
                                    : ", did you mean \"" + nearest + "\"?"));
}

// Returns the joined text of a content's parts; only texts can be trained.
std::string text_of_parts(const Json& parts, const std::string& place) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = place_of(place, i);
    if (!parts[i].is_object()) {
      throw RowProblem(part + ": expected an object, found " + article_and_type(parts[i]));
    }
    const auto type = parts[i].find("type");
    if (type == parts[i].end() || *type != "text") {
      throw RowProblem(part + ": only parts of type \"text\" can be used");
    }
    if (!parts[i].contains("text")) throw RowProblem(part + ": expected a key \"text\"");
    text += required_text(parts[i]["text"], part + ".text", true);
  }
  return text;
}

bool is_blank(const std::string& text) {
  return trimmed(text).empty();
}

Json read_content(const Json& message, const std::string& place, bool may_lack) {
  const auto content = message.find("content");
  const std::string where = place + ".content";
  if (content == message.end() || content->is_null()) {
    if (may_lack) return nullptr;
    throw RowProblem(where + ": expected a string, found " +
                     (content == message.end() ? "nothing" : "null"));
  }
  const std::string text =
      content->is_array() ? text_of_parts(*content, where) : required_text(*content, where, true);
  if (is_blank(text) && !may_lack) throw RowProblem(where + ": the message is empty");
  return *content;
}

// Parses arguments into an object, as inference servers do for templates.
Json read_arguments(const Json& arguments, const std::string& place) {
  if (arguments.is_object()) return arguments;
  if (!arguments.is_string()) {
    throw RowProblem(place + ": expected an object, found " + article_and_type(arguments));
  }
  const auto& text = arguments.get_ref<const std::string&>();
  if (is_blank(text)) return Json::object();
  try {
    Json parsed = parse_json(text, {}, {});
    if (parsed.is_object()) return parsed;
  } catch (const DataError& error) {
    // The position in an unnamed text starts with ":1: ", its line.
    std::string reason = error.what();
    reason.erase(0, reason.find(": ") + 2);
    throw RowProblem(place + ": the string is no JSON object: " + reason);
  }
  throw RowProblem(place + ": the string is no JSON object");
}

Json read_tool_calls(const Json& calls, const std::string& place) {
  if (!calls.is_array()) {
    throw RowProblem(place + ": expected an array, found " + article_and_type(calls));
  }
  Json read = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string where = place_of(place, i);
    if (!calls[i].is_object()) {
      throw RowProblem(where + ": expected an object, found " + article_and_type(calls[i]));
    }
    Json call = calls[i];
    Json& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object() || !function.contains("name")) {
      throw RowProblem(where + ": expected a function with a name");
    }
    required_text(function["name"], where + ".name");
    if (function.contains("arguments") && !function["arguments"].is_null()) {
      function["arguments"] = read_arguments(function["arguments"], where + ".arguments");
    }
    read.push_back(std::move(call));
  }
  return read;
}

// Reads the flags of other trainers for a trained message: Axolotl's train and training, and loss.
bool says_train(const Json& value, const std::string& place) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number() && (value == 0 || value == 1)) return value == 1;
  throw RowProblem(place + ": expected true, false, 1 or 0, found " +
                   printable(value.dump(), kMaxNameBytes) +
                   "; the member \"weight\" takes other numbers");
}

// Reads what an answer's loss is multiplied by. Refuses an answer of which only a part is to be
// trained, because all of it would be.
void read_training(const Json& message, const std::string& place, Json& read) {
  if (read["role"] != "assistant") return;
  read.erase("weight");
  for (const std::string_view key : kTrainingMembers) {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) continue;
    const std::string where = place + "." + std::string(key);
    if (key == "weight" && found->is_number()) {
      const float weight = read_number(*found, where, /*not_negative=*/true);
      if (weight != 1.0f) read["weight"] = weight;
    } else if (!says_train(*found, where)) {
      read["weight"] = 0;
    }
  }
  constexpr const char* kParts =
      ": parts of an answer cannot be left out of training; give the "
      "whole message \"weight\": 0, or make two messages of it";
  const auto detail = message.find("train_detail");
  if (detail != message.end() && detail->is_array() && !detail->empty()) {
    throw RowProblem(place + ".train_detail" + kParts);
  }
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const bool left_out = part.value("train", Json()) == false || part.value("weight", Json()) == 0;
    if (left_out) throw RowProblem(place_of(place + ".content", i) + kParts);
  }
}

Json read_message(const Json& message, const std::string& place) {
  if (!message.is_object()) {
    throw RowProblem(place + ": expected an object, found " + article_and_type(message));
  }
  if (!message.contains("role")) {
    throw RowProblem(place + ": expected a key \"role\", found " + keys_of(message));
  }
  Json read = message;
  std::string role = required_text(message["role"], place + ".role");
  if (const std::string other = role_of_name(role); !other.empty()) read["role"] = role = other;
  check_role(role, place);
  bool calls = false;
  // Older files have one call of this name, which is the first of today's list.
  const auto old_call = message.find("function_call");
  const bool only = read.value("tool_calls", Json()).is_null();
  if (old_call != message.end() && old_call->is_object() && only) {
    read["tool_calls"] = Json::array({{{"type", "function"}, {"function", *old_call}}});
    read.erase("function_call");
  }
  const auto tool_calls = read.find("tool_calls");
  // Tables give every message a list of calls; it is empty if there are no calls.
  if (tool_calls != read.end() && *tool_calls == Json::array()) read.erase("tool_calls");
  if (read.contains("tool_calls") && !read["tool_calls"].is_null()) {
    if (role != "assistant") {
      throw RowProblem(place + ".tool_calls: only the assistant calls tools");
    }
    const std::string where = place + ".tool_calls";
    read["tool_calls"] = read_tool_calls(parsed_if_json(*tool_calls, where), where);
    calls = true;
  }
  const bool may_be_empty = calls || role == "tool" || role == "function" || role == "ipython";
  const bool no_instruction =
      role == "system" && message.contains("content") && message["content"].is_string();
  read["content"] = read_content(message, place, may_be_empty || no_instruction);
  read_training(message, place, read);
  return read;
}

// Parses a turn that is a call, {"name": ..., "arguments": ...}, or an array of calls.
Json read_call_turn(const std::string& text, const std::string& place) {
  Json calls;
  try {
    calls = parse_json(text, {}, {});
  } catch (const DataError&) {
    throw RowProblem(place + ".value: the call is no JSON");
  }
  if (calls.is_object()) calls = Json::array({calls});
  Json wrapped = Json::array();
  if (calls.is_array()) {
    for (const Json& call : calls) {
      const bool bare = call.is_object() && !call.contains("function");
      wrapped.push_back(bare ? Json{{"type", "function"}, {"function", call}} : call);
    }
  }
  if (wrapped.empty()) throw RowProblem(place + ".value: expected a call with a name");
  return {{"role", "assistant"},
          {"content", ""},
          {"tool_calls", read_tool_calls(wrapped, place + ".value")}};
}

Json read_turn(const Json& turn, const std::string& place) {
  if (!turn.is_object()) {
    throw RowProblem(place + ": expected an object, found " + article_and_type(turn));
  }
  for (const char* key : {"from", "value"}) {
    if (!turn.contains(key)) {
      throw RowProblem(place + ": expected a key \"" + key + "\", found " + keys_of(turn));
    }
  }
  const std::string& from = required_text(turn["from"], place + ".from");
  const std::string role = role_of_speaker(from, place);
  const bool may_be_empty = role == "tool" || role == "system";
  const std::string& text = required_text(turn["value"], place + ".value", may_be_empty);
  if (is_blank(text) && !may_be_empty) throw RowProblem(place + ".value: the message is empty");
  Json message =
      from == kCallSpeaker ? read_call_turn(text, place) : Json{{"role", role}, {"content", text}};
  read_training(turn, place, message);
  return message;
}

// Notes the members of a message or a turn that neither this code nor the template reads.
void note_message(const Json& message, const std::string& name, const RowFormatOptions& options,
                  RowNotes* notes) {
  if (notes == nullptr || !message.is_object()) return;
  const bool turn = message.contains("from");
  std::vector<std::string> read =
      turn ? std::vector<std::string>{"from", "value"}
           : std::vector<std::string>{"role",          "content",           "tool_calls",
                                      "function_call", "reasoning_content", "thinking",
                                      "reasoning"};
  const std::string role = message.value(turn ? "from" : "role", std::string());
  if (role == "assistant" || role_of_name(role) == "assistant") {
    read.insert(read.end(), kTrainingMembers.begin(), kTrainingMembers.end());
  }
  for (const auto& [member, value] : message.items()) {
    const bool says_no = (value == false || value == 0) &&
                         std::ranges::find(kTrainingMembers, member) != kTrainingMembers.end();
    const bool template_reads = !turn && options.chat != nullptr && options.chat->names(member);
    if (says_no || template_reads) read.push_back(member);
  }
  note_unread(message, read, name + "[].", notes);
}

bool is_instruction(const std::string& role) {
  return role == "system" || role == "developer";
}

// Refuses orders of roles that no template supports. Templates check further rules themselves.
void check_order(const Json& messages, const std::string& name) {
  bool answered = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = messages[i]["role"].get<std::string>();
    const std::string place = place_of(name, i);
    if (is_instruction(role) && i > 0 && !is_instruction(messages[i - 1]["role"])) {
      throw RowProblem(place + ": wrong order of roles: a " + role +
                       " message must come before all others");
    }
    const bool result = role == "tool" || role == "function" || role == "ipython";
    if (result && !answered) {
      throw RowProblem(place + ": wrong order of roles: a " + role +
                       " message must follow the assistant's call");
    }
    answered = role == "assistant" || result;
  }
}

// Parses a tool's parameters: a table with tools of many kinds can hold them only as strings.
void read_parameters(Json& tool, const std::string& place) {
  Json& function = tool.contains("function") ? tool["function"] : tool;
  if (!function.is_object() || !function.contains("parameters")) return;
  Json& parameters = function["parameters"];
  if (parameters.is_string()) parameters = read_arguments(parameters, place + ".parameters");
}

// Returns the path within `value` of an integer outside 64 bits; nullopt if there is none.
std::optional<std::string> large_integer_in(const Json& value) {
  if (value.is_binary()) return "";
  if (!value.is_structured()) return std::nullopt;
  for (auto it = value.begin(); it != value.end(); ++it) {
    const std::optional<std::string> rest = large_integer_in(*it);
    if (!rest) continue;
    if (value.is_object()) return "." + it.key() + *rest;
    return place_of("", static_cast<size_t>(it - value.begin())) + *rest;
  }
  return std::nullopt;
}

// Refuses an integer outside 64 bits that a template could write, since no template can.
void refuse_large_integers(const Json& value, const std::string& place) {
  const std::optional<std::string> path = large_integer_in(value);
  if (path) {
    throw RowProblem(place + *path + ": an integer outside 64 bits; write it as a string");
  }
}

// Removes the definitions of parameters that a tool lacks: a table gives every tool the parameters
// of all, which are null where they are another tool's.
void remove_absent_parameters(Json& schema) {
  if (!schema.is_structured()) return;
  for (Json& inner : schema) remove_absent_parameters(inner);
  if (!schema.is_object() || !schema.contains("properties")) return;
  Json& properties = schema["properties"];
  if (!properties.is_object()) return;
  Json defined = Json::object();
  for (const auto& [name, definition] : properties.items()) {
    if (!definition.is_null()) defined[name] = definition;
  }
  properties = std::move(defined);
}

Json read_tools(const Json& row, const RowFormatOptions& options) {
  const std::string key = options.name_of("tools");
  const auto member = row.find(key);
  if (member == row.end() || member->is_null()) return nullptr;
  Json tools = *member;
  if (tools.is_string()) {
    if (is_blank(tools.get<std::string>())) return nullptr;
    tools = parsed_if_json(tools, key);
  }
  if (!tools.is_array()) {
    throw RowProblem(key + ": expected an array, found " + article_and_type(tools));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) {
      throw RowProblem(place_of(key, i) + ": expected an object, found " +
                       article_and_type(tools[i]));
    }
    read_parameters(tools[i], place_of(key, i));
    remove_absent_parameters(tools[i]);
  }
  refuse_large_integers(tools, key);
  return tools.empty() ? Json(nullptr) : tools;
}

// Reads the row's own variables for the template, as TRL does.
Json read_arguments(const Json& row) {
  const auto found = row.find("chat_template_kwargs");
  if (found == row.end() || found->is_null()) return Json::object();
  if (!found->is_object()) {
    throw RowProblem("chat_template_kwargs: expected an object, found " + article_and_type(*found));
  }
  Json given = Json::object();
  for (const auto& [name, value] : found->items()) {
    if (!value.is_null()) given[name] = value;
  }
  refuse_large_integers(given, "chat_template_kwargs");
  return given;
}

}  // namespace

bool is_role(const std::string& name) {
  const std::vector<std::string>& roles = known_roles();
  return std::ranges::find(roles, name) != roles.end() || !role_of_name(name).empty();
}

bool is_answer(const Json& message) {
  if (!message.is_object()) return false;
  for (const char* key : {"role", "from"}) {
    const auto role = message.find(key);
    if (role == message.end() || !role->is_string()) continue;
    return *role == "assistant" || role_of_name(role->get<std::string>()) == "assistant";
  }
  return false;
}

std::string name_of_messages(const Json& row, const RowFormatOptions& options) {
  std::string name = options.name_of("messages");
  if (row.contains(name)) return name;
  for (const char* other : {"conversations", "conversation"}) {
    if (row.contains(other)) return other;
  }
  const std::string text = options.name_of("text");
  if (row.contains(text) && is_text_of_messages(row[text])) return text;
  // A preference pair trains its chosen conversation.
  const auto chosen = row.find("chosen");
  const auto prompt = row.find(options.name_of("prompt"));
  const bool apart = prompt != row.end() && prompt->is_array();
  if (chosen != row.end() && chosen->is_array() && !apart) return "chosen";
  return name;
}

Conversation read_conversation(const Json& row, const RowFormatOptions& options, RowNotes* notes) {
  require_object(row);
  const std::string name = name_of_messages(row, options);
  const Json list = messages_of_member(required_member(row, name), name, notes);
  if (!list.is_array()) {
    throw RowProblem(name + ": expected an array, found " + article_and_type(list));
  }
  if (list.empty()) throw RowProblem(name + ": the array is empty");
  const bool share_gpt = list[0].is_object() && list[0].contains("from");
  Conversation conversation;
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = place_of(name, i);
    messages.push_back(share_gpt ? read_turn(list[i], place) : read_message(list[i], place));
    note_message(list[i], name, options, notes);
    refuse_large_integers(messages.back(), place);
  }
  check_order(messages, name);
  const std::string system_name = options.name_of("system");
  const auto system = row.find(system_name);
  if (system != row.end() && system->is_string() && !is_blank(system->get<std::string>())) {
    if (!is_instruction(messages[0]["role"])) {
      conversation.messages.push_back({{"role", "system"}, {"content", *system}});
    } else if (notes != nullptr) {
      ++notes->unread[system_name];  // the messages have their own
    }
  }
  for (Json& message : messages) conversation.messages.push_back(std::move(message));
  conversation.tools = read_tools(row, options);
  conversation.arguments = read_arguments(row);
  return conversation;
}

}  // namespace longshore
