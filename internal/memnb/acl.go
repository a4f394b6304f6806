package memnb

// aclSchema has the tables of ACLs and address sets, in the form that northboundSchema has the others.
const aclSchema = `
    "ACL": {"isRoot": false, "columns": {
      "name": {"type": {"key": {"type": "string", "maxLength": 63}, "min": 0, "max": 1}},
      "priority": {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 32767}}},
      "direction": {"type": {"key": {"type": "string", "enum": ["set", ["from-lport", "to-lport"]]}}},
      "match": {"type": "string"},
      "action": {"type": {"key": {"type": "string", "enum": ["set", ["allow", "allow-related", "allow-stateless", "drop", "reject"]]}}},
      "log": {"type": "boolean"},
      "severity": {"type": {"key": {"type": "string", "enum": ["set", ["alert", "warning", "notice", "info", "debug"]]}, "min": 0, "max": 1}},
      "options": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "Address_Set": {"isRoot": true, "indexes": [["name"]], "columns": {
      "name": {"type": "string"},
      "addresses": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},`
