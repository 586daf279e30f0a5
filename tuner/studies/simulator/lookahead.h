/* Computes what other blocks would take, and leaves the timeline unchanged. A search looks at many neighbours of one
 * timeline, and most are too slow. So the timeline's tasks are laid out once in the order in which they became
 * ready, with the state of algorithm 1 at some points on the way. Each look runs algorithm 1 from the first event
 * that may differ. It touches a fraction of the memory that `sim_delta` touches, and reads it in order. Start at
 * `sim_look`. */
#include "tasks.h"

/* Orders the tasks by ready time, then key, as algorithm 1 reaches them. A look's own tasks get numbers behind
 * these. */
static void order_tasks(Sim *s, Order *o) {
    o->node_n = o->slot_n = 0;
    o->rank = grown(o->rank, &o->rank_cap, s->task_n, sizeof *o->rank);
    s->heap_n = 0;
    for (i32 l = 0; l < s->lanes; l++)
        if (s->time[l].next != l) push(s, s->time[s->time[l].next].ready, s->time[l].next, 1);
    while (s->heap_n) {
        i32 t = pop(s).task, next = s->time[t].next;
        o->rank[t] = o->node_n;
        PUSH(o, slot, t);
        PUSH(o, node, ((Node){s->task[t].exe, s->task[t].key, s->time[t].ready, s->time[t].end, s->task[t].lane, 0}));
        if (next >= s->lanes) push(s, s->time[next].ready, next, 1);
    }
}

static void order_dependencies(Sim *s, Order *o) {
    i32 n = o->node_n;
    o->succ_n = 0;
    o->state = grown(o->state, &o->state_cap, n, sizeof *o->state);
    for (i32 k = 0; k < n; k++) o->state[k] = (State){0, 0, -1};
    for (i32 k = 0; k < n; k++) {
        o->node[k].first = o->succ_n;
        for (i32 d = s->task[o->slot[k]].succ; d >= 0; d = s->dep[d].next_s) {
            i32 to = o->rank[s->dep[d].to];
            o->state[to].out++;
            PUSH(o, succ, to);
        }
    }
    PUSH(o, node, ((Node){0, 0, 0, 0, 0, o->succ_n})); /* a sentinel: the last task's successors end here */
}

/* Ends the k-th task of the timeline, and updates its lane and its successors. */
static void pass(Order *o, i32 k) {
    const Node *node = &o->node[k];
    o->free_at[node->lane] = node->end;
    o->left[node->lane] -= node->exe;
    for (i32 i = node->first; i < node[1].first; i++) {
        State *v = &o->state[o->succ[i]];
        if (node->end > v->want) v->want = node->end;
        v->out--;
    }
}

static i32 point(const Order *o, i32 p) { return (i32)((i64)o->tasks * p / POINTS); }

static void remember(Sim *s, Order *o) {
    size_t lanes = (size_t)s->lanes, n = (size_t)o->tasks;
    o->states = grown(o->states, &o->states_cap, POINTS * o->tasks, sizeof *o->states);
    o->lanes_at = grown(o->lanes_at, &o->lanes_cap, POINTS * 2 * s->lanes, sizeof *o->lanes_at);
    memset(o->free_at, 0, lanes * sizeof(i64));
    memset(o->left, 0, lanes * sizeof(i64));
    for (i32 k = 0; k < o->tasks; k++) o->left[o->node[k].lane] += o->node[k].exe;
    for (i32 p = 0; p < POINTS; p++) {
        i32 from = point(o, p), to = point(o, p + 1);
        memcpy(o->states + n * (size_t)p + from, o->state + from, (n - (size_t)from) * sizeof(State));
        memcpy(o->lanes_at + lanes * 2 * (size_t)p, o->free_at, lanes * sizeof(i64));
        memcpy(o->lanes_at + lanes * (2 * (size_t)p + 1), o->left, lanes * sizeof(i64));
        for (i32 k = from; k < to; k++) pass(o, k);
    }
}

static Order *ordered(Sim *s) {
    Order *o = &s->order;
    if (o->known) return o;
    if (!o->free_at) {
        o->free_at = calloc((size_t)s->lanes, sizeof(i64));
        o->left = calloc((size_t)s->lanes, sizeof(i64));
        o->own = malloc(sizeof(i32) * (size_t)(s->nblocks + 1));
        if (!o->free_at || !o->left || !o->own) abort();
        for (i32 i = 0; i <= s->nblocks; i++) o->own[i] = -1;
    }
    order_tasks(s, o);
    o->tasks = o->node_n;
    order_dependencies(s, o);
    remember(s, o);
    o->known = 1;
    return o;
}

static void free_order(Order *o) {
    free(o->rank), free(o->slot), free(o->node), free(o->succ), free(o->state), free(o->states), free(o->lanes_at);
    free(o->free_at), free(o->left), free(o->own), free(o->arc), free(o->fresh), free(o->link);
}

/* ---- one look ---- */

static i32 numbered(const Sim *s, const Order *o, i32 id, i32 role, i32 task) {
    i32 block = block_of(s, id, role);
    return o->own[block] >= 0 ? o->own[block] + task : o->rank[s->blocks[block].slots[task]];
}

static void set_gone(Sim *s, const Change *c, i32 gone) {
    for (i32 i = 0; i < c->count; i++) {
        const Block *b = &s->blocks[c->id[i]];
        for (i32 k = 0; k < b->tasks; k++) s->task[b->slots[k]].gone = gone;
    }
}

/* Appends the new blocks' tasks to the timeline's, and their dependencies as arcs that `exchange` links later. */
static void take_in(Sim *s, Order *o, const Change *c) {
    o->node_n = o->tasks + 1;
    o->arc_n = o->fresh_n = 0;
    for (i32 i = 0; i < c->count; i++) {
        const Given *g = c->given[i];
        o->own[c->id[i]] = o->node_n;
        for (i32 k = 0; k < g->tasks; k++) {
            PUSH(o, node, ((Node){g->exe[k], key_of(c->id[i], k), 0, 0, g->lane[k], 0}));
            PUSH(o, fresh, 0);
        }
    }
    for (i32 i = 0; i < c->count; i++) {
        const Given *g = c->given[i];
        for (i32 k = 0; k < g->deps; k++) {
            const i32 *q = g->dep + 4 * (size_t)k;
            PUSH(o, arc, ((Arc){numbered(s, o, c->id[i], q[0], q[1]), numbered(s, o, c->id[i], q[2], q[3]), -1}));
        }
    }
    for (i32 i = 0; i < c->count; i++) o->own[c->id[i]] = -1;
}

static i64 least(i64 a, i64 b) { return a < b ? a : b; }

/* Returns the time of the first event that may differ; until then the timeline is unchanged. The event is a task
 * that is removed or new, one that no longer waits for a removed task, or one that now waits for another task. */
static i64 first_event(Sim *s, Order *o, const Change *c) {
    i64 first = INT64_MAX;
    for (i32 i = 0; i < o->arc_n; i++) {
        const Arc *a = &o->arc[i];
        i32 own = a->to - o->tasks - 1;
        if (own < 0) first = least(first, o->node[a->to].ready);
        if (a->from > o->tasks) {
            if (own >= 0) o->fresh[own] = -1;
            else s->marked[o->slot[a->to]] = s->now;
        } else if (own >= 0 && o->fresh[own] >= 0 && o->node[a->from].end > o->fresh[own])
            o->fresh[own] = o->node[a->from].end;
    }
    for (i32 i = 0; i < o->fresh_n; i++)
        if (o->fresh[i] >= 0) first = least(first, o->fresh[i]);
    for (i32 i = 0; i < c->count; i++) {
        const Block *b = &s->blocks[c->id[i]];
        for (i32 k = 0; k < b->tasks; k++) first = least(first, s->time[b->slots[k]].ready);
        for (i32 k = 0; k < b->ndeps; k++) {
            i32 to = s->dep[b->deps[k]].to;
            if (s->task[to].gone || s->marked[to] == s->now) continue;
            s->marked[to] = s->now;
            i64 want = 0;
            for (i32 d = s->task[to].pred; d >= 0; d = s->dep[d].next_p)
                if (!s->task[s->dep[d].from].gone && s->time[s->dep[d].from].end > want)
                    want = s->time[s->dep[d].from].end;
            first = least(first, want);
        }
    }
    return first;
}

/* Restores the state before the first event at or after this time, and returns the index of that event's task. */
static i32 go_to(Sim *s, Order *o, i64 time) {
    i32 low = 0, high = o->tasks, p = POINTS - 1;
    while (low < high) {
        i32 middle = (low + high) / 2;
        if (o->node[middle].ready < time) low = middle + 1;
        else high = middle;
    }
    while (p && point(o, p) > low) p--;
    size_t lanes = (size_t)s->lanes, n = (size_t)o->tasks, from = (size_t)point(o, p);
    o->state = grown(o->state, &o->state_cap, o->node_n, sizeof *o->state);
    memcpy(o->state + from, o->states + n * (size_t)p + from, (n - from) * sizeof(State));
    memcpy(o->free_at, o->lanes_at + lanes * 2 * (size_t)p, lanes * sizeof(i64));
    memcpy(o->left, o->lanes_at + lanes * (2 * (size_t)p + 1), lanes * sizeof(i64));
    for (i32 k = (i32)from; k < low; k++) pass(o, k);
    return low;
}

enum { NEVER = 1 << 30 };

/* Removes the old blocks and adds the new ones. All their tasks come at the `at`-th task of the timeline or later. */
static void exchange(Sim *s, Order *o, const Change *c, i32 at) {
    for (i32 i = 0; i < c->count; i++) {
        const Block *b = &s->blocks[c->id[i]];
        for (i32 k = 0; k < b->ndeps; k++) o->state[o->rank[s->dep[b->deps[k]].to]].out--;
    }
    for (i32 i = 0; i < c->count; i++) {
        const Block *b = &s->blocks[c->id[i]];
        for (i32 k = 0; k < b->tasks; k++) {
            i32 t = o->rank[b->slots[k]];
            o->state[t].out = NEVER;
            o->left[o->node[t].lane] -= o->node[t].exe;
        }
    }
    for (i32 k = o->tasks + 1; k < o->node_n; k++) {
        o->state[k] = (State){0, 0, -1};
        o->left[o->node[k].lane] += o->node[k].exe;
    }
    for (i32 i = 0; i < o->arc_n; i++) {
        Arc *a = &o->arc[i];
        State *to = &o->state[a->to];
        if (a->from < at) {
            if (o->node[a->from].end > to->want) to->want = o->node[a->from].end;
            continue;
        }
        to->out++;
        a->next = o->state[a->from].arcs;
        o->state[a->from].arcs = i;
    }
}

/* ---- events: they wait in buckets of time, and only the open bucket is a heap ---- */

static void open_buckets(Sim *s, Order *o, i64 most) {
    for (o->shift = 0; most >> o->shift >= BUCKETS; o->shift++) {}
    memset(o->filled, 0, sizeof o->filled);
    o->link = grown(o->link, &o->link_cap, o->node_n, sizeof *o->link);
    o->opened = -1;
    s->heap_n = 0;
}

static void come(Sim *s, Order *o, i32 k) {
    i64 time = o->state[k].want;
    i32 bucket = (i32)(time >> o->shift);
    if (bucket > o->opened) {
        uint64_t bit = (uint64_t)1 << bucket % 64;
        o->link[k] = o->filled[bucket / 64] & bit ? o->bucket[bucket] : -1;
        o->filled[bucket / 64] |= bit;
        o->bucket[bucket] = k;
        return;
    }
    Event e = {time, o->node[k].key, k, 1};
    PUSH(s, heap, e);
    rise(s->heap, s->heap_n - 1, e);
}

/* Opens the next bucket that has events; returns 0 if there is none. */
static int open_next(Sim *s, Order *o) {
    i32 word = (o->opened + 1) / 64;
    if (word >= BUCKETS / 64) return 0;
    uint64_t left = o->filled[word] & ~(uint64_t)0 << (o->opened + 1) % 64;
    while (!left) {
        if (++word == BUCKETS / 64) return 0;
        left = o->filled[word];
    }
    o->opened = word * 64 + __builtin_ctzll(left);
    for (i32 k = o->bucket[o->opened]; k >= 0; k = o->link[k]) come(s, o, k);
    return 1;
}

static inline void told(Sim *s, Order *o, i32 k, i64 end) {
    State *v = &o->state[k];
    if (end > v->want) v->want = end;
    if (!--v->out) come(s, o, k);
}

/* Runs algorithm 1 from the `at`-th task. It ends with -1 as soon as the work left on a lane must end after `limit`, so
 * that no event is later than `limit`. */
static i64 look(Sim *s, Order *o, i32 at, i64 limit) {
    i64 last = 0, left_on_all = 0;
    for (i32 l = 0; l < s->lanes; l++) {
        if (o->free_at[l] + o->left[l] > limit) return -1;
        if (o->free_at[l] > last) last = o->free_at[l];
        left_on_all += o->left[l];
    }
    open_buckets(s, o, least(limit, last + left_on_all)); /* some lane is busy at any time */
    for (i32 k = at; k < o->node_n; k++)
        if (k != o->tasks && !o->state[k].out) come(s, o, k);
    while (s->heap_n || open_next(s, o)) {
        Event e = pop(s);
        s->visited++;
        const Node *node = &o->node[e.task];
        i64 *free_at = &o->free_at[node->lane], *left = &o->left[node->lane];
        i64 end = (e.time > *free_at ? e.time : *free_at) + node->exe;
        *free_at = end;
        *left -= node->exe;
        if (end + *left > limit) return -1;
        if (end > last) last = end;
        if (e.task < o->tasks)
            for (i32 i = node->first; i < node[1].first; i++) told(s, o, o->succ[i], end);
        for (i32 a = o->state[e.task].arcs; a >= 0; a = o->arc[a].next) told(s, o, o->arc[a].to, end);
    }
    return last;
}

static i64 look_at(Sim *s, Order *o, const Change *c, i64 limit) {
    s->now++;
    set_gone(s, c, 1);
    take_in(s, o, c);
    i32 at = go_to(s, o, first_event(s, o, c));
    exchange(s, o, c, at);
    set_gone(s, c, 0);
    return look(s, o, at, limit);
}

/* Tells whether a change exceeds the memories, and by no less than the current strategy does. An excess of up to a
 * byte is ignored. */
i32 sim_too_large(const Sim *s, i32 count, const i32 *id, const Given *const *given, const Memory *m) {
    double before = 0, after = 0;
    for (i32 k = 0; k < m->count; k++) {
        double need = m->need[k];
        if (need > m->have[k]) before += need - m->have[k];
        for (i32 i = 0; i < count; i++) need += given[i]->memory[k] - s->blocks[id[i]].memory[k];
        if (need > m->have[k]) after += need - m->have[k];
    }
    return after > 1 && after >= before;
}

/* Finds the makespan with each of `changes`, or -1 where that is above `limit` or the change is too large. The i-th
 * change has the next `count[i]` of the blocks. Every dependency of a block, old or new, begins or ends at one of
 * its own tasks. */
void sim_look(Sim *s, i32 changes, const i32 *count, const i32 *id, const Given *const *given, const Memory *memory,
              i64 limit, i64 *found) {
    Order *o = ordered(s);
    for (i32 i = 0; i < changes; id += count[i], given += count[i], i++) {
        const Change c = {count[i], id, given};
        found[i] = sim_too_large(s, count[i], id, given, memory) ? -1 : look_at(s, o, &c, limit);
    }
    s->heap_n = 0;
}
