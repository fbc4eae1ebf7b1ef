// DataFiles: resolves the entries of data.train and data.eval: paths, or hub ids of data sets in
// the local Hugging Face cache. Plain functions.
#pragma once

#include "config/run_config.h"

namespace longshore {

// Returns `data` with each hub id replaced by its files, which all get the id's weight. Existing
// paths stay unchanged. DataError if the cache lacks the data set.
DataSection with_data_files(DataSection data);

}  // namespace longshore
