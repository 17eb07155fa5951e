{{- define "anabranch.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "anabranch.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "anabranch.labels" -}}
{{ include "anabranch.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "anabranch.advertised" -}}
{{- if .Values.service.advertised -}}
{{ .Values.service.advertised }}
{{- else -}}
{{ printf "%s.%s.svc:%v" (include "anabranch.fullname" .) .Release.Namespace .Values.ports.broker }}
{{- end -}}
{{- end -}}
