/* The network unit beside the core in one translation unit, for the targets that look into it. A few names mean something else in the
 * core: they get another one here. Include it after fuzz.h. */
#ifndef GN_NET_UNIT_H
#define GN_NET_UNIT_H

#define gn__known gn__net_known
#define gn__link gn__net_link
#define gn__log gn__net_log
#define gn__net gn__net_table
#define gn__random gn__net_random
#define gn__split gn__net_split
#define gn__store gn__net_store
#define gn__where gn__net_where
#include "../../genie_net.c"
#undef gn__known
#undef gn__link
#undef gn__log
#undef gn__net
#undef gn__random
#undef gn__split
#undef gn__store
#undef gn__where

#endif
