// ChatRows: the formats of rows with answers: conversations, and prompts with completions.
// Internal to src/data; the formats are immutable, any thread.
#pragma once

#include <memory>

#include "data/row_format.h"

namespace longshore {

// A conversation in the shape that chat templates read.
struct Conversation {
  Json messages = Json::array();    // role, content, tool_calls, ...
  Json tools = nullptr;             // an array, or null
  Json arguments = Json::object();  // the row's own for the template: chat_template_kwargs
};

// The member that holds a row's messages: messages, conversations, conversation, or chosen where a
// row is a pair to choose from. "messages" where there is none.
std::string name_of_messages(const Json& row, const RowFormatOptions& options);

// Reads {"messages": [...], "tools": [...]} as OpenAI writes them, or {"conversations": [{"from",
// "value"}]} as ShareGPT does. RowProblem names the place of what is wrong.
// `notes` get the members of messages that neither we nor the template read.
Conversation read_conversation(const Json& row, const RowFormatOptions& options,
                               RowNotes* notes = nullptr);

std::unique_ptr<RowFormat> make_messages_format(const RowFormatOptions& options);
std::unique_ptr<RowFormat> make_prompt_format(const RowFormatOptions& options);

}  // namespace longshore
