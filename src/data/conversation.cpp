// Conversations: from the shapes that data sets have to the one that chat templates read.
#include <array>
#include <utility>

#include "base/errors.h"
#include "base/nearest.h"
#include "data/chat_rows.h"
#include "data/row_checks.h"

namespace longshore {
namespace {

const std::vector<std::string>& known_roles() {
  static const std::vector<std::string> kRoles = {"system", "developer", "user",   "assistant",
                                                  "tool",   "function",  "ipython"};
  return kRoles;
}

// ShareGPT's names of those who speak.
std::string role_of_speaker(const std::string& from, const std::string& place) {
  static const std::array<std::pair<const char*, const char*>, 12> kSpeakers = {
      {{"human", "user"},
       {"user", "user"},
       {"gpt", "assistant"},
       {"assistant", "assistant"},
       {"chatgpt", "assistant"},
       {"bing", "assistant"},
       {"bard", "assistant"},
       {"model", "assistant"},
       {"system", "system"},
       {"tool", "tool"},
       {"observation", "tool"},
       {"function_response", "tool"}}};
  for (const auto& [speaker, role] : kSpeakers) {
    if (from == speaker) return role;
  }
  throw RowProblem(place + ".from: \"" + from.substr(0, 40) +
                   "\" is not known; expected human, gpt, system or tool");
}

void check_role(const std::string& role, const std::string& place) {
  const std::vector<std::string>& roles = known_roles();
  if (std::find(roles.begin(), roles.end(), role) != roles.end()) return;
  const std::string nearest = nearest_name(role, roles);
  throw RowProblem(place + ".role: \"" + role.substr(0, 40) + "\" is no role" +
                   (nearest.empty() ? "; expected system, user, assistant or tool"
                                    : ", did you mean \"" + nearest + "\"?"));
}

// The text of a content's parts; only texts can be trained on.
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
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
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

// Arguments as objects, as serving programs hand them to templates.
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
  } catch (const DataError&) {
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

Json read_message(const Json& message, const std::string& place) {
  if (!message.is_object()) {
    throw RowProblem(place + ": expected an object, found " + article_and_type(message));
  }
  if (!message.contains("role")) {
    throw RowProblem(place + ": expected a key \"role\", found " + keys_of(message));
  }
  Json read = message;
  const std::string role = required_text(message["role"], place + ".role");
  check_role(role, place);
  bool calls = false;
  const auto tool_calls = message.find("tool_calls");
  if (tool_calls != message.end() && !tool_calls->is_null()) {
    if (role != "assistant") {
      throw RowProblem(place + ".tool_calls: only the assistant calls tools");
    }
    read["tool_calls"] = read_tool_calls(*tool_calls, place + ".tool_calls");
    calls = !read["tool_calls"].empty();
    if (!calls) read.erase("tool_calls");
  }
  const bool may_be_empty = calls || role == "tool" || role == "function" || role == "ipython";
  read["content"] = read_content(message, place, may_be_empty);
  return read;
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
  const std::string role = role_of_speaker(required_text(turn["from"], place + ".from"), place);
  const std::string& text = required_text(turn["value"], place + ".value", role == "tool");
  if (is_blank(text) && role != "tool") throw RowProblem(place + ".value: the message is empty");
  Json message = {{"role", role}, {"content", text}};
  if (turn.contains("weight")) message["weight"] = turn["weight"];
  return message;
}

bool is_instruction(const std::string& role) {
  return role == "system" || role == "developer";
}

// Orders that no template means; what else a template wants it says itself.
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

Json read_tools(const Json& row, const RowFormatOptions& options) {
  const std::string key = options.name_of("tools");
  const auto member = row.find(key);
  if (member == row.end() || member->is_null()) return nullptr;
  Json tools = *member;
  if (tools.is_string()) {
    const std::string text = tools.get<std::string>();
    if (is_blank(text)) return nullptr;
    try {
      tools = parse_json(text, {}, {});
    } catch (const DataError&) {
      throw RowProblem(key + ": the string is no JSON");
    }
  }
  if (!tools.is_array()) {
    throw RowProblem(key + ": expected an array, found " + article_and_type(tools));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) {
      throw RowProblem(place_of(key, i) + ": expected an object, found " +
                       article_and_type(tools[i]));
    }
  }
  return tools.empty() ? Json(nullptr) : tools;
}

// What the row gives the template besides, as TRL has it.
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
  return given;
}

}  // namespace

Conversation read_conversation(const Json& row, const RowFormatOptions& options) {
  require_object(row);
  std::string name = options.name_of("messages");
  if (!row.contains(name) && row.contains("conversations")) name = "conversations";
  const Json& list = required_member(row, name);
  if (!list.is_array()) {
    throw RowProblem(name + ": expected an array, found " + article_and_type(list));
  }
  if (list.empty()) throw RowProblem(name + ": the array is empty");
  const bool share_gpt = list[0].is_object() && list[0].contains("from");
  Conversation conversation;
  const auto system = row.find("system");
  if (share_gpt && system != row.end() && system->is_string() &&
      !is_blank(system->get<std::string>())) {
    conversation.messages.push_back({{"role", "system"}, {"content", *system}});
  }
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = place_of(name, i);
    messages.push_back(share_gpt ? read_turn(list[i], place) : read_message(list[i], place));
  }
  check_order(messages, name);
  for (Json& message : messages) conversation.messages.push_back(std::move(message));
  conversation.tools = read_tools(row, options);
  conversation.arguments = read_arguments(row);
  return conversation;
}

}  // namespace longshore
